"""Jobs for torchtitan, as the words of its command line."""

NUM_STEPS = 6
NUM_STEPS_OF_LONG_RUNS = 20


def common_words(num_steps: int) -> dict[str, str]:
    return {
        "--training.seq_len": "32",
        "--training.local_batch_size": "2",
        "--training.steps": str(num_steps),
        "--lr_scheduler.warmup_steps": "2",
        "--metrics.log_freq": "1",
        "--debug.seed": "1",
    }


def words(options: dict[str, str | None]) -> list[str]:
    """["--a", "1", "--flag"] from {"--a": "1", "--flag": None}."""
    return [word for name, value in options.items() for word in (name, value) if word is not None]
