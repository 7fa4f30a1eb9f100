"""The engine of a worker group: DeepSpeed ZeRO. That of one process has the same face (orchestration/plain_engine.py).

In: an objective (nn.Module) and its optimizer settings. Out: what orchestration/steps.py calls an Engine, and the
engine's own business: gathering sharded weights, saving and loading its state.
Only this file and orchestration/universal.py, its half for other numbers of ranks, import deepspeed. Knows neither Ray
nor the data.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from orchestration import universal
from orchestration.deferral import DeferringWriter
from orchestration.optimizer import adamw, clip, moments

Batch = dict[str, Tensor]
STATE, KEPT = "state", "kept.pt"  # folder and file inside a checkpoint
LOWEST_LOSS_SCALE = 1.0  # DeepSpeed's default: gradients that overflow there are no matter of scale


def gathered(value: Any) -> list[Any]:
    """The value of each rank of the process group, in their order; all ranks must call it."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


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
        persistence_threshold: int,
        device: torch.device | str,
        precision: str = "fp32",
        offload: str | None = None,
        scales: Mapping[str, float] | None = None,
    ) -> None:
        """`precision`: fp32, bf16 or fp16 (with dynamic loss scaling); `offload`: "optimizer" or None; `scales`: as in
        parameter_groups."""
        import deepspeed
        from deepspeed.ops import __compatible_ops__

        # DeepSpeed would compile its shared-memory all-reduce at the first start: tens of seconds and a C++
        # compiler, for an operation that only inference uses.
        __compatible_ops__["deepspeed_shm_comm"] = False
        self.device = torch.device(device)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.stage, self.precision = stage, precision
        self.gradient_clipping = gradient_clipping
        # Stage 0 in fp32 hands back no norm and does not look for NaN: there we clip ourselves, in `step`.
        self.plain_optimizer = stage == 0 and precision == "fp32"
        module = module.to(self.device)
        zero: dict[str, Any] = {"stage": stage, "stage3_param_persistence_threshold": persistence_threshold}
        if offload == "optimizer":
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": self.device.type == "cuda"}
        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": micro_batch,
            "gradient_accumulation_steps": accumulation,
            "bf16": {"enabled": precision == "bf16", "check_grad_overflow": True},
            "fp16": {"enabled": precision == "fp16", "loss_scale": 0},
            "gradient_clipping": 0.0 if self.plain_optimizer else gradient_clipping or 0.0,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            # DeepSpeed's own Adam for offloading would be compiled at the first start; torch's is fused on CPUs too.
            "zero_force_ds_cpu_optimizer": False,
        }
        optimizer = adamw(module, weight_decay, scales)
        names = {parameter: name for name, parameter in module.named_parameters()}
        self.names = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
        self._hyperparameters = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        # Any: what of the engine and its optimizer we use is chosen by the stage, not by a type.
        self.engine: Any = deepspeed.initialize(
            model=module, optimizer=optimizer, config=settings, dist_init_required=False
        )[0]
        self.module: nn.Module = self.engine.module
        self.engine.checkpoint_engine = self._writer = DeferringWriter(self.engine.checkpoint_engine)
        self.engine._copy_recovery_script = lambda folder: None  # an error there would be one rank's alone
        self._rescaled = False
        self._prepare()

    def _prepare(self) -> None:
        """What DeepSpeed's optimizer of this stage and precision does otherwise than the others."""
        optimizer = self.engine.optimizer
        if self.stage in (1, 2):
            optimizer.check_grad_overflow = True  # off in fp32
        if self.stage == 0 and not self.plain_optimizer:
            optimizer.optimizer.state.clear()  # it took a step with gradient 0, so that Adam's count is one ahead
        scaler: Any = getattr(optimizer, "loss_scaler", None)
        if hasattr(scaler, "raise_error_at_min_scale"):
            scaler.raise_error_at_min_scale = False  # a bad step like another: counted, and told with its rows

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over ranks."""
        dist.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, in their order."""
        return gathered(value)

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Loss sums and metric sums of one batch of this rank."""
        return self.engine({key: value.to(self.device) for key, value in batch.items()})

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's share of the loss.

        DeepSpeed averages over ranks and would divide by the accumulation count; the loss is already divided by the
        step's targets, so both are undone.
        """
        scale = self.loss_scale() if self.stage == 0 else 1.0  # which DeepSpeed takes back there, but does not put on
        self.engine.backward(loss * self.world_size * scale, scale_wrt_gas=False)
        if not self.engine.is_gradient_accumulation_boundary():
            self.engine.step()  # between boundaries this only advances DeepSpeed's micro-step counter

    def step(self, learning_rate: float) -> float:
        """Clip, update, clear; returns the gradient's norm over all ranks before clipping.

        Where it is not finite, on all ranks alike, weights and optimizer state stay as they are.
        Raises RuntimeError where DeepSpeed did otherwise.
        """
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate * group["scale"]
        if self.plain_optimizer:
            norm = float(clip([p for p in self.module.parameters() if p.requires_grad], self.gradient_clipping))
            if not math.isfinite(norm):
                self.engine.zero_grad()  # AdamW passes over parameters without a gradient
            self.engine.step()
            return norm
        before = self.loss_scale()
        self.engine.step()
        norm = float(self.engine.get_global_grad_norm()) / (before if self.stage == 0 else 1.0)
        if math.isfinite(norm) != self.engine.was_step_applied():
            raise RuntimeError(f"DeepSpeed's update and its gradient norm {norm} contradict each other")
        self._rescaled = not math.isfinite(norm) and before > LOWEST_LOSS_SCALE
        return norm

    def rescaled(self) -> bool:
        """Whether the last step was refused only to look for a loss scale (fp16), which was not yet at its lowest."""
        return self._rescaled

    def loss_scale(self) -> float:
        """By which fp16 multiplies the loss; 1 in other precisions."""
        return float(self.engine.optimizer.loss_scale) if self.precision == "fp16" else LOWEST_LOSS_SCALE

    def accumulate(self, accumulation: int) -> None:
        """Micro-batches of a step from now on. Call between steps."""
        engine = self.engine
        engine.set_train_batch_size(accumulation * engine.train_micro_batch_size_per_gpu() * self.world_size)
        engine.micro_steps = 0  # DeepSpeed updates where this is a multiple of the number
        if hasattr(engine.optimizer, "gradient_accumulation_steps"):
            engine.optimizer.gradient_accumulation_steps = accumulation

    def full_state(self) -> dict[str, Tensor]:
        """Every weight and buffer, whole and on the CPU, on rank 0 (empty elsewhere). All ranks must call it."""
        names = [name for name, _ in self.module.named_parameters(remove_duplicate=False)]
        saved = self.module.state_dict().keys()  # buffers that a checkpoint holds, not those made anew
        return self._gathered([*names, *(name for name, _ in self.module.named_buffers() if name in saved)])

    def _gathered(self, names: list[str]) -> dict[str, Tensor]:
        """Parameters and buffers by name, whole and on the CPU, on rank 0."""
        state: dict[str, Tensor] = {}
        tensors = dict(self.module.named_parameters(remove_duplicate=False)) | dict(self.module.named_buffers())
        for name in names:
            with self._whole(tensors[name]):
                if self.rank == 0:
                    tensor = tensors[name].detach()
                    state[name] = (tensor.float() if isinstance(tensors[name], nn.Parameter) else tensor).cpu().clone()
        return state

    def _whole(self, tensor: Tensor, modifier_rank: int | None = None) -> AbstractContextManager[Any]:
        """A context in which every rank has all of a parameter; what `modifier_rank` writes there reaches all ranks."""
        import deepspeed

        sharded = self.stage == 3 and isinstance(tensor, nn.Parameter)
        return deepspeed.zero.GatheredParameters([tensor], modifier_rank=modifier_rank, enabled=sharded)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        """Copy the weights that train, whole, into a module of the same shape on this rank. All ranks must call it."""
        into = dict(module.named_parameters())
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                with self._whole(parameter):
                    into[name].copy_(parameter)

    def state(self) -> list[Tensor]:
        """Copies of what this rank holds of the weights that train and of the optimizer, on the CPU: for `restore`, on
        the same rank of as many, at the same stage, in fp32. What is frozen is not among them."""
        return [tensor.detach().cpu().clone() for tensor in self._held()]

    @torch.no_grad()
    def restore(self, state: Sequence[Tensor]) -> None:
        """Go on from what `state` returned. All ranks must call it."""
        for tensor, saved in zip(self._held(), state, strict=True):
            tensor.copy_(saved)
        if self.stage == 3 and (whole := self.engine.optimizer.persistent_parameters):
            whole[0].partition(whole)  # else these would still be the weights from before
            whole[0].all_gather(whole)

    def _held(self) -> list[Tensor]:
        """This rank's tensors of weights and optimizer, those that ZeRO shards in its own flat form."""
        optimizer = self.engine.optimizer
        weights: list[Any] = [p for p in self.module.parameters() if p.requires_grad]
        if self.stage == 0:
            return moments(optimizer, weights) + weights
        flat = optimizer.fp32_partitioned_groups_flat if self.stage == 3 else optimizer.single_partition_of_fp32_groups
        shards = [weight.ds_tensor for weight in weights] if self.stage == 3 else weights
        return [*moments(optimizer.optimizer, flat), *flat, *shards]

    def save(self, folder: Path) -> None:
        """Write this rank's part of the training state under `folder`, which may be this rank's own.

        All ranks must call it, and all return or raise together. Raises OSError where this rank could not write.
        """
        self.engine.save_checkpoint(str(folder), tag=STATE, save_latest=False)
        kept = self._gathered(universal.kept_of(self.module))
        if kept:
            self._writer.save(kept, str(folder / STATE / KEPT))
        self._writer.raise_fault()

    def load(
        self,
        folder: Path,
        saved_world_size: int,
        saved_stage: int,
        saved_precision: str | None = None,
        scratch: Path | None = None,
    ) -> None:
        """Read what `save` wrote on any number of ranks, at any stage. All ranks must call it.

        Exact where nothing changed. Else the state is first converted into `scratch` (None: a folder of the node for
        temporary files) by one rank of each node, and removed from there.
        Raises FileNotFoundError, and RuntimeError on all ranks where the conversion failed.
        """
        ranks = self.world_size if self.stage else saved_world_size  # stage 0 holds all of it on every rank
        precision = saved_precision or self.precision
        if (saved_world_size, saved_stage, precision) == (ranks, self.stage, self.precision):
            path, _ = self.engine.load_checkpoint(str(folder), tag=STATE)
            if path is None:
                raise FileNotFoundError(f"{folder}: DeepSpeed found no training state there")
        else:
            place = universal.place_for(folder / STATE, scratch)
            with universal.converted(folder / STATE, place, self.names, self.stage, self.gather) as whole:
                universal.load(self.engine, whole, self.names, self._hyperparameters)
        if (folder / STATE / KEPT).exists():
            self._restore(torch.load(folder / STATE / KEPT, map_location="cpu"))

    @torch.no_grad()
    def _restore(self, kept: dict[str, Tensor]) -> None:
        """Put back frozen parameters and buffers."""
        tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        for name, value in kept.items():
            with self._whole(tensors[name], modifier_rank=0):
                tensors[name].copy_(value)
