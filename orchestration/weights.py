"""The folders of weights that a run begins with: the encoder to continue from, the teacher to follow.

In: a config. Out: the folders where every node finds them, and what was new or unused in them, or a UserError before
any worker starts. Knows Ray only to look where the weights are, which need not be where the driver is.
"""

from pathlib import Path
from typing import Any

from data.config import UserError
from data.storage import fetch, place
from data.store import Store
from orchestration.config import Config
from orchestration.recipe import build_config


def located(config: Config) -> Config:
    """The config with folders of weights as absolute paths, which workers on any node understand."""
    given = {"encoder.init": config.encoder.init, "objective.teacher": config.objective.teacher}
    return build_config(
        config.model_dump(mode="json"), {key: str(place(folder)) for key, folder in given.items() if folder}
    )


def try_weights(config: Config, store: Store) -> list[str]:
    """Load the folders that the run begins with once, on some node; returns what was new or unused in them.

    Raises UserError where they do not fit: better now than in every worker, three times over.
    """
    import ray
    from ray.exceptions import RayTaskError

    if config.encoder.init is None and config.objective.teacher is None:
        return []
    load: Any = ray.remote(_load_weights).options(num_cpus=0)
    try:
        return ray.get(load.remote(located(config), store.manifest["tokenizer"]))
    except RayTaskError as error:
        if isinstance(error.cause, ValueError):
            raise UserError(str(error.cause)) from None
        raise


def _load_weights(config: Config, tokenizer: dict[str, Any]) -> list[str]:
    from model.objectives.catalogue import build_objective

    fetch_weights(config)
    report = build_objective(config.objective, config.encoder, tokenizer, config.seed)[1]
    return report.lines() if report else []


def fetch_weights(config: Config) -> None:
    """Bring the folders that a run begins with to this node, where they lie in a bucket."""
    for folder in (config.encoder.init, config.objective.teacher):
        if folder is not None:
            fetch(Path(folder))
