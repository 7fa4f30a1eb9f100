"""The training state for other ranks than those that saved it: another number of them, ZeRO stage or precision.

In: the files that DeepSpeed saved. Out: one folder a parameter, whole (weights in fp32, both moments of AdamW, its step
count), in a scratch place of the node, from which each rank of any stage takes its part. DeepSpeed's universal
checkpoint, with the repairs that its ZeRO-3 needs; of stage 0, which it does not convert, written and read here.
Knows neither Ray nor buckets.

Source: Universal Checkpointing, arXiv:2406.18820.
"""

import argparse
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from data.storage import id_of

MODEL_STATES = "mp_rank_00_model_states.pt"
MODEL_STATES_OF_STAGE_3 = "zero_pp_rank_0_mp_rank_00_model_states.pt"
MOMENTS = ("exp_avg", "exp_avg_sq")
NEEDED = 2.6  # bytes on the disk for each that was saved: it writes all in pieces, then whole (2.5 at stage 3)


def place_for(state: Path, scratch: Path | None) -> Path:
    """Where `state` is converted: a folder of its own in `scratch`; None: among this node's temporary files."""
    root = scratch or Path(tempfile.gettempdir()) / f"cloze-universal-{os.getuid()}"
    # By the run, not by the step: what a killed conversion left is wiped by the next one.
    return root / hashlib.sha256(str(state.parent.parent).encode()).hexdigest()[:16]


@contextmanager
def converted(
    state: Path, scratch: Path, names: list[list[str]], stage: int, gather: Callable[[Any], list[Any]]
) -> Iterator[Path]:
    """The universal form of `state` in `scratch`, which is wiped before and removed afterwards.

    Every rank must enter it; the first of those that see the same `scratch` does the work. `gather` hands every rank
    the values of all. `names`: of the trained parameters, by optimizer group; `stage`: that will load.
    Raises RuntimeError on all ranks alike where one of them could not convert.
    """
    mine, me = id_of(scratch), os.urandom(8)
    first = next(asks for asks, place in gather((me, mine)) if place == mine)
    converts, fault = first == me, None
    if converts:
        try:
            convert(state, scratch, names, stage)
        except Exception as error:  # told to all ranks, which would wait for this one
            fault = f"{state} could not be converted for these workers: {type(error).__name__}: {error}"
    if faults := [told for told in gather(fault) if told]:
        if converts:
            shutil.rmtree(scratch, ignore_errors=True)
        raise RuntimeError(faults[0])
    try:
        yield scratch / "state"
        gather(None)  # no rank reads it any more
    finally:
        if converts:
            shutil.rmtree(scratch, ignore_errors=True)


def convert(state: Path, scratch: Path, names: list[list[str]], stage: int) -> None:
    """Write the universal form of the saved `state` to `scratch`/state, for ranks of ZeRO `stage`.

    Raises OSError where the disk is too small.
    """
    saved_bytes = sum(file.stat().st_size for file in state.iterdir())
    part = scratch / "state.part"
    for old in scratch.iterdir():  # what a killed process left; the converter would take it for its own
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    part.mkdir()
    needed, free = NEEDED * saved_bytes, shutil.disk_usage(scratch).free
    if needed > free:
        raise OSError(
            f"{scratch} needs {needed / 1e9:.1f} GB for it and has {free / 1e9:.1f} GB free; make room there, or "
            f"go on with the number of workers and the zero.stage that saved it"
        )
    if any(state.glob("*_optim_states.pt")):
        _convert_sharded(state, part, names, stage)
    else:
        _convert_whole(state, part, names)
    part.rename(scratch / "state")


def _convert_sharded(state: Path, part: Path, names: list[list[str]], stage: int) -> None:
    """Of ZeRO stages 1 to 3: DeepSpeed's converter, then what it leaves out for a change of stage."""
    from deepspeed.checkpoint import ds_to_universal

    ds_to_universal.main(
        argparse.Namespace(
            input_folder=str(state), output_folder=str(part), num_extract_workers=1, num_merge_workers=1,
            keep_temp_folder=False, strict=True, inject_missing_state=True,
        )
    )  # fmt: skip
    optimizer: dict[str, Any] = torch.load(part / "zero" / "optimizer_state.pt", weights_only=False, mmap=True)
    step_file = part / "zero" / names[0][0] / "step.pt"
    inner = optimizer.get("optimizer_state_dict")  # of stage 3 only, with all of one rank's tensors
    step = inner["state"][0]["step"] if inner else torch.load(step_file, weights_only=False)
    if inner and stage < 3:  # it writes bare tensors there, where the other stages look for them by name
        for name in (name for group in names for name in group):
            for file in (part / "zero" / name).glob("*.pt"):
                _write({"param": torch.load(file, weights_only=False)}, file)
    kept = {k: v for k, v in optimizer.items() if k in ("loss_scaler", "dynamic_loss_scale", "overflow", "ds_version")}
    source = next(state.glob("*model_states.pt"))
    _describe(part, source, names, step, optimizer["param_groups"], kept)


def _convert_whole(state: Path, part: Path, names: list[list[str]]) -> None:
    """Of stage 0, whose one file holds everything whole."""
    saved: dict[str, Any] = torch.load(state / MODEL_STATES, weights_only=False, mmap=True, map_location="cpu")
    optimizer = saved["optimizer"]
    inner = optimizer.get("optimizer_state_dict", optimizer)  # in bf16 and fp16 within that of the fp32 weights
    weights = [saved["module"][name] for group in names for name in group]
    if "fp32_groups" in optimizer:
        weights = [tensor for group in optimizer["fp32_groups"] for tensor in group]
    step = torch.tensor(0.0)
    for index, (name, weight) in enumerate(zip((n for group in names for n in group), weights, strict=True)):
        moments = inner["state"].get(index, {})  # nothing before the first update
        step = moments.get("step", step)
        whole = {"fp32": weight, **{key: moments.get(key, torch.zeros_like(weight)) for key in MOMENTS}}
        for key, tensor in whole.items():
            _write({"param": tensor.detach().float().clone()}, part / "zero" / name / f"{key}.pt")
    _describe(part, state / MODEL_STATES, names, step, inner["param_groups"], {})


def _describe(
    part: Path, source: Path, names: list[list[str]], step: Any, groups: list[dict[str, Any]], kept: dict[str, Any]
) -> None:
    """What is not of one parameter, small and as each stage looks for it: stage 3 asks for other names than 1 and 2."""
    for name in (name for group in names for name in group):
        _write(step, part / "zero" / name / "step.pt")
    saved: dict[str, Any] = torch.load(source, weights_only=False, mmap=True, map_location="cpu")
    version, inner = saved["ds_version"], {"state": {0: {"step": step}}, "param_groups": groups}
    whole = {"ds_version": version, "param_groups": groups, "optimizer_state_dict": inner, **kept}
    _write(whole, part / "zero" / "optimizer_state.pt")
    facts = {key: value for key, value in saved.items() if key not in ("module", "optimizer")} | {"module": {}}
    for file in part.glob("*model_states.pt"):
        file.unlink()
    for name in (MODEL_STATES, MODEL_STATES_OF_STAGE_3):
        _write(facts, part / name)


def _write(value: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # the old file may be mapped into memory, for what is written here
    torch.save(value, path)


def load(engine: Any, universal: Path, names: list[list[str]], hyperparameters: list[dict[str, Any]]) -> None:
    """Load this rank's part of the state in `universal` into a DeepSpeed engine. All ranks must call it.

    `hyperparameters`: of each optimizer group, as the engine was built with. Raises FileNotFoundError.
    """
    if engine.zero_optimization_stage() == 0:
        _load_whole(engine, universal, names)
        return
    engine._config.load_universal_checkpoint = True  # else only a key of the config, and for every load alike
    try:
        path, _ = engine.load_checkpoint(str(universal.parent), tag=universal.name)
    finally:
        engine._config.load_universal_checkpoint = False
    if path is None:
        raise FileNotFoundError(f"{universal}: DeepSpeed found no universal checkpoint there")
    optimizer = engine.optimizer.optimizer
    # Stage 3 gives all its sub-groups one step tensor, which AdamW counts up once for each, and the hyperparameters of
    # the first group to all. Fused AdamW wants the count beside the moments.
    for state in optimizer.state.values():
        state["step"] = torch.as_tensor(state["step"], dtype=torch.float32).to(state[MOMENTS[0]].device, copy=True)
    for group, own in zip(optimizer.param_groups, hyperparameters, strict=True):
        group.update(own)


@torch.no_grad()
def _load_whole(engine: Any, universal: Path, names: list[list[str]]) -> None:
    """Into stage 0, every rank all of it."""
    parameters = dict(engine.module.named_parameters())
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    for group, group_names in zip(optimizer.param_groups, names, strict=True):
        for master, name in zip(group["params"], group_names, strict=True):
            found: dict[str, Tensor] = {}
            for key in ("fp32", *MOMENTS):
                found[key] = torch.load(universal / "zero" / name / f"{key}.pt", weights_only=False)["param"]
            step = torch.load(universal / "zero" / name / "step.pt", weights_only=False)
            master.copy_(found["fp32"].view_as(master))
            parameters[name].copy_(master)
            state = {key: found[key].view_as(master).to(master.device) for key in MOMENTS}
            state["step"] = torch.as_tensor(step, dtype=torch.float32).to(master.device, copy=True)
            optimizer.state[master] = state


def kept_of(module: nn.Module) -> list[str]:
    """Names of what no optimizer knows and a state has to hold: frozen parameters, and buffers that are saved."""
    saved = module.state_dict().keys()
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    return [*frozen, *(name for name, _ in module.named_buffers() if name in saved)]
