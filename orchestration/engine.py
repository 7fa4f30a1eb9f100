"""Two engines with one face: DeepSpeed ZeRO in a worker group, plain torch in one process.

In: an objective (nn.Module) and its optimizer settings. Out: what orchestration/steps.py calls an Engine, and the
engine's own business: gathering sharded weights, saving and loading its state, bytes held on this rank.
The only file that imports deepspeed. Knows neither Ray nor the data.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from orchestration.deferral import DeferringWriter

Batch = dict[str, Tensor]


def parameter_groups(
    module: nn.Module, weight_decay: float, scales: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Trainable parameters in groups: matrices decay, biases and norms do not; one pair of groups for each `scale`.

    `scales`: learning rate of each parameter, by name, as a share of the step's; None: 1 for all.
    Raises ValueError where nothing is trainable.
    Source: BERT, arXiv:1810.04805 appendix A.2, and its public code (`_do_use_weight_decay`).
    """
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            scale = 1.0 if scales is None else scales[name]
            groups.setdefault((scale, parameter.ndim > 1), []).append(parameter)
    if not groups:
        raise ValueError("nothing to train: every parameter is frozen")
    return [
        {"params": parameters, "weight_decay": weight_decay if decays else 0.0, "scale": scale}
        for (scale, decays), parameters in sorted(groups.items(), key=lambda item: item[0], reverse=True)
    ]


def adamw(
    module: nn.Module, weight_decay: float, scales: Mapping[str, float] | None = None
) -> torch.optim.AdamW:
    """AdamW with BERT's betas; the learning rate is set at every step.

    Fused: for BERT-tiny on a CPU 1.3 ms a step instead of 6.3.
    """
    groups = parameter_groups(module, weight_decay, scales)
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.999), eps=1e-8, fused=True)


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
        self.module = module.to(self.device)
        self.gradient_clipping = gradient_clipping
        self.optimizer = adamw(self.module, weight_decay, scales)

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over ranks: there is one."""
        return values

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


def clip(parameters: list[nn.Parameter], largest: float | None) -> Tensor:
    """Scale gradients to a norm of at most `largest` (None: leave them); returns the norm before."""
    return nn.utils.clip_grad_norm_(parameters, float("inf") if largest is None else largest)


class DeepSpeedEngine:
    """DeepSpeed ZeRO over the default process group (arXiv:1910.02054)."""

    def __init__(
        self,
        module: nn.Module,
        *,
        stage: int,
        micro_batch: int,
        accumulation: int,
        weight_decay: float,
        gradient_clipping: float | None,
        bf16: bool,
        persistence_threshold: int,
        device: torch.device | str,
    ) -> None:
        import deepspeed
        from deepspeed.ops import __compatible_ops__

        # DeepSpeed would compile its shared-memory all-reduce at the first start: tens of seconds and a C++
        # compiler, for an operation that only inference uses.
        __compatible_ops__["deepspeed_shm_comm"] = False
        self.device = torch.device(device)
        self.stage = stage
        self.gradient_clipping = gradient_clipping
        # Stage 0 in fp32 hands back no norm and does not look for NaN: there we clip ourselves, in `step`.
        self.plain_optimizer = stage == 0 and not bf16
        module = module.to(self.device)
        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": micro_batch,
            "gradient_accumulation_steps": accumulation,
            "bf16": {"enabled": bf16},
            "gradient_clipping": 0.0 if self.plain_optimizer else gradient_clipping or 0.0,
            "zero_optimization": {
                "stage": stage,
                "stage3_param_persistence_threshold": persistence_threshold,
            },
            "zero_allow_untested_optimizer": True,
        }
        optimizer = adamw(module, weight_decay)
        # Any: what of the engine and its optimizer we use is chosen by the stage, not by a type.
        self.engine: Any = deepspeed.initialize(
            model=module, optimizer=optimizer, config=settings, dist_init_required=False
        )[0]
        self.module: nn.Module = self.engine.module
        self.engine.checkpoint_engine = self._writer = DeferringWriter(self.engine.checkpoint_engine)
        self.engine._copy_recovery_script = lambda folder: None  # an error there would be one rank's alone

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over ranks."""
        dist.all_reduce(values)
        return values

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Loss sums and metric sums of one batch of this rank."""
        return self.engine({key: value.to(self.device) for key, value in batch.items()})

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's share of the loss.

        DeepSpeed averages over ranks and would divide by the accumulation count; the loss is already divided by the
        step's targets, so both are undone.
        """
        self.engine.backward(loss * dist.get_world_size(), scale_wrt_gas=False)
        if not self.engine.is_gradient_accumulation_boundary():
            self.engine.step()  # between boundaries this only advances DeepSpeed's micro-step counter

    def step(self, learning_rate: float) -> float:
        """Clip, update, clear; returns the gradient's norm over all ranks before clipping."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        if self.plain_optimizer:
            parameters = [p for p in self.module.parameters() if p.requires_grad]
            norm = float(clip(parameters, self.gradient_clipping))
            if norm != norm or norm == float("inf"):
                self.engine.zero_grad()
                return norm
            self.engine.step()
            return norm
        self.engine.step()
        return float(self.engine.get_global_grad_norm())

    def accumulate(self, accumulation: int) -> None:
        """Micro-batches of a step from now on. Call between steps."""
        engine = self.engine
        engine.set_train_batch_size(accumulation * engine.train_micro_batch_size_per_gpu() * dist.get_world_size())
        engine.micro_steps = 0  # DeepSpeed updates where this is a multiple of the number
        if hasattr(engine.optimizer, "gradient_accumulation_steps"):
            engine.optimizer.gradient_accumulation_steps = accumulation

    def full_state(self) -> dict[str, Tensor]:
        """Every weight and buffer, whole and on the CPU, on rank 0 (empty elsewhere). All ranks must call it."""
        import deepspeed

        state: dict[str, Tensor] = {}
        rank = dist.get_rank()
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            with deepspeed.zero.GatheredParameters([parameter], enabled=self.stage == 3):
                if rank == 0:
                    state[name] = parameter.detach().float().cpu().clone()
        if rank == 0:
            saved = self.module.state_dict().keys()  # buffers that a checkpoint holds, not those made anew
            state.update({n: b.detach().cpu().clone() for n, b in self.module.named_buffers() if n in saved})
        return state

    def save(self, folder: Path) -> None:
        """Write this rank's part of the training state under `folder`, which may be this rank's own.

        All ranks must call it, and all return or raise together. Raises OSError where this rank could not write.
        """
        self.engine.save_checkpoint(str(folder), tag="state", save_latest=False)
        self._writer.raise_fault()

    def load(
        self,
        folder: Path,
        saved_world_size: int | None = None,
        saved_stage: int | None = None,
        saved_precision: str | None = None,
    ) -> None:
        """Read back what `save` wrote, at the same stage and number of ranks. All ranks must call it."""
        path, _ = self.engine.load_checkpoint(str(folder), tag="state")
        if path is None:
            raise FileNotFoundError(f"{folder}: DeepSpeed found no training state there")

    def held_bytes(self) -> dict[str, int]:
        """Bytes of optimizer state, gradients and parameters that this rank holds. Call between backward and step."""
        optimizer = self.engine.optimizer
        states = getattr(optimizer, "optimizer", optimizer).state
        optimizer_bytes = sum(
            value.nbytes for state in states.values() for value in state.values() if torch.is_tensor(value)
        )
        partitions = getattr(optimizer, "averaged_gradients", {}).values()
        gradients = {id(p.grad): p.grad for p in self.module.parameters() if p.grad is not None}
        if self.stage == 3:  # one flat buffer holds this rank's part of all gradients
            flat = optimizer.grad_partitions_flat_buffer
            gradients[id(flat)] = flat
        else:
            gradients.update({id(g): g for group in partitions if group is not None for g in group})
        parameters = sum(
            getattr(p, "ds_tensor", p).nbytes if p.numel() == 0 else p.nbytes  # ZeRO-3 leaves an empty tensor
            for p in self.module.parameters()
        )
        return {
            "optimizer": optimizer_bytes,
            "gradients": sum(g.nbytes for g in gradients.values()),
            "parameters": parameters,
        }
