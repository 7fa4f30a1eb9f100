"""What a rank holds of the training state, in bytes: what a ZeRO stage promises, measured.

In: an engine. Out: bytes by kind. Knows what DeepSpeed keeps at each stage.
"""

import torch

from orchestration.engine import DeepSpeedEngine


def held_bytes(engine: DeepSpeedEngine) -> dict[str, int]:
    """Bytes of optimizer state, gradients and parameters that this rank holds. Call between backward and step."""
    optimizer = engine.engine.optimizer
    states = getattr(optimizer, "optimizer", optimizer).state
    optimizer_bytes = sum(
        value.nbytes for state in states.values() for value in state.values() if torch.is_tensor(value)
    )
    partitions = getattr(optimizer, "averaged_gradients", {}).values()
    gradients = {id(p.grad): p.grad for p in engine.module.parameters() if p.grad is not None}
    if engine.stage == 3:  # one flat buffer holds this rank's part of all gradients
        flat = optimizer.grad_partitions_flat_buffer
        gradients[id(flat)] = flat
    else:
        gradients.update({id(g): g for group in partitions if group is not None for g in group})
    parameters = sum(
        getattr(p, "ds_tensor", p).nbytes if p.numel() == 0 else p.nbytes  # ZeRO-3 leaves an empty tensor
        for p in engine.module.parameters()
    )
    return {
        "optimizer": optimizer_bytes,
        "gradients": sum(g.nbytes for g in gradients.values()),
        "parameters": parameters,
    }
