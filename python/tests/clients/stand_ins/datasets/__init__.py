"""Stands in for Hugging Face's datasets (with pyarrow: 200 MB): JSON-lines files, read whole."""

import json
import pathlib


class Dataset:
    def __init__(self, samples: list[dict]):
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self):
        return iter(self._samples)

    def skip(self, count: int) -> "Dataset":
        return Dataset(self._samples[count:])


def load_dataset(path: str, split: str, **_) -> Dataset:
    files = sorted(pathlib.Path(path).glob("*.json"))
    if not files:
        raise FileNotFoundError(f"{path} holds no .json file")
    return Dataset([json.loads(line) for file in files for line in file.open(encoding="utf-8")])
