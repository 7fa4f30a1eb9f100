"""Results of trials as they lie on disk, made up: scores by seed, and what else a test of a leaderboard wants."""

from typing import Any

TRAINED = {"frozen": 1_000, "lora": 5_000, "full": 80_000}


def results(
    mode: str, scores: list, encoder: str = "pretrained", rate: float = 1e-3, size: int | None = 900, **more: Any
) -> list[dict[str, Any]]:
    """A result for each seed of a point; a status instead of a score: a trial that came to nothing."""
    point = f"{mode}{rate:g}"
    asked = f"-n{size}" if more.pop("asked", False) else ""
    found = []
    for seed, score in enumerate(scores, more.pop("first_seed", 0)):
        lost = isinstance(score, str)
        status = score if lost else more.get("status", "done")
        found.append({
            "trial": f"{encoder}-{point}{asked}-s{seed}", "encoder": encoder, "point": point, "seed": seed,
            "values": {"finetune.mode": mode}, "metric": "accuracy", "mode": mode, "learning_rate": rate,
            "num_epochs": 3, "best_epoch": None if lost else 2, "score": None if lost else score, "seconds": 2.0,
            "worker_seconds": 4.0 if mode == "full" else 2.0, "workers": 2 if mode == "full" else 1,
            "encoder_rows": 900 if mode == "full" else 0, "trained_parameters": None if lost else TRAINED[mode],
            "total_parameters": 90_000, "train_size": size, "error": f"{score} it was" if lost else None,
            **more, "status": status,
        })  # fmt: skip
    return found
