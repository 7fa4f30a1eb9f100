"""The engine of one process: plain torch. That of a worker group has the same face (orchestration/engine.py).

In: an objective (nn.Module) and its optimizer settings. Out: what orchestration/steps.py calls an Engine. Knows neither
DeepSpeed nor Ray nor the data.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from orchestration.optimizer import adamw, clip, moments

Batch = dict[str, Tensor]


class PlainEngine:
    """Plain torch in one process: small trials, and one machine without Ray."""

    def __init__(
        self,
        module: nn.Module,
        weight_decay: float = 0.01,
        gradient_clipping: float | None = 1.0,
        device: torch.device | str = "cpu",
        scales: Mapping[str, float] | None = None,
    ) -> None:
        """`scales`: as in parameter_groups."""
        self.device = torch.device(device)
        self.rank, self.world_size = 0, 1
        self.module = module.to(self.device)
        self.gradient_clipping = gradient_clipping
        self.optimizer = adamw(self.module, weight_decay, scales)

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over ranks: there is one."""
        return values

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank: there is one."""
        return [value]

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Loss sums and metric sums of one batch."""
        return self.module({key: value.to(self.device) for key, value in batch.items()})

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of `loss`."""
        loss.backward()

    def step(self, learning_rate: float) -> float:
        """Clip, update unless the gradient is not finite, clear; returns the norm before clipping."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = clip(parameters, self.gradient_clipping)
        if torch.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate * group["scale"]
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm.item()

    def rescaled(self) -> bool:
        """Whether the last step was refused only to look for a loss scale: there is none."""
        return False

    def copy_to(self, module: nn.Module) -> None:
        """Copy the weights that train into a module of the same shape, unless it is the engine's own."""
        if module is not self.module:
            module.load_state_dict({n: p for n, p in self.module.named_parameters() if p.requires_grad}, strict=False)

    def state(self) -> list[Tensor]:
        """Copies of the weights that train and of the optimizer, on the CPU: for `restore`."""
        return [tensor.detach().cpu().clone() for tensor in self._held()]

    @torch.no_grad()
    def restore(self, state: Sequence[Tensor]) -> None:
        """Go on from what `state` returned."""
        for tensor, saved in zip(self._held(), state, strict=True):
            tensor.copy_(saved)

    def _held(self) -> list[Tensor]:
        weights = [p for p in self.module.parameters() if p.requires_grad]
        return moments(self.optimizer, weights) + weights
