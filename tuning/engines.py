"""The engines that train a trial: plain torch in its own process, DeepSpeed ZeRO in the ranks of its group.

In: a head's module, the finetune section, a device. Out: the engine, and a module with the same weights that a rank can
run by itself. Knows neither Ray nor the data.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from torch import Tensor, nn

from model.freezing import learning_rate_scales
from model.heads.contract import HeadModule
from orchestration.config import Zero
from orchestration.plain_engine import PlainEngine
from orchestration.steps import Engine
from tuning.config import Finetune


class TrialEngine(Engine, Protocol):
    """What a trial needs of an engine beside what the loop does."""

    def copy_to(self, module: nn.Module) -> None:
        """Copy the weights that train into a module of this rank, which may be the engine's own."""
        ...

    def state(self) -> list[Tensor]:
        """What `restore` goes on from: this rank's."""
        ...

    def restore(self, state: Sequence[Tensor]) -> None:
        """Go on from what `state` returned."""
        ...


MakeEngine = Callable[[HeadModule, Finetune, str], tuple[TrialEngine, HeadModule]]


def plain_engine(module: HeadModule, settings: Finetune, device: str) -> tuple[TrialEngine, HeadModule]:
    """One process."""
    engine = PlainEngine(module, settings.weight_decay, settings.gradient_clipping, device, _scales(module, settings))
    return engine, module


def zero_engine(zero: Zero) -> MakeEngine:
    """Of the ranks of the default process group, which share each global batch."""
    return partial(_zero_engine, zero=zero)


def _zero_engine(
    module: HeadModule, settings: Finetune, device: str, zero: Zero
) -> tuple[TrialEngine, HeadModule]:
    import torch.distributed as dist

    from orchestration.engine import DeepSpeedEngine

    # A rank of stage 3 has but pieces: what it judges with is a module of its own, made before they are cut.
    judge = copy.deepcopy(module).to(device) if zero.stage == 3 else module
    engine = DeepSpeedEngine(
        module,
        stage=zero.stage,
        micro_batch=-(-settings.global_batch // dist.get_world_size()),
        accumulation=1,
        weight_decay=settings.weight_decay,
        gradient_clipping=settings.gradient_clipping,
        persistence_threshold=zero.persistence_threshold,
        device=device,
        offload=zero.offload,
        scales=_scales(module, settings),
    )
    return engine, judge


def _scales(module: HeadModule, settings: Finetune) -> dict[str, float] | None:
    """Learning rates by layer."""
    return learning_rate_scales(module, settings.layerwise_lr_decay) if settings.layerwise_lr_decay < 1 else None
