"""The names that kernels' signatures are annotated with."""


class _Name:
    def __call__(self, *_, **__):
        return self


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Name()
