"""What torch.optim.Muon makes of seeded matrices, as raw bytes, for muon_torch_test.cpp.

Arguments: one case each, "dtype,rows,columns,nesterov,adjust_lr_fn,ns_steps". Writes to stdout, for
each case, the parameter and its momentum after NUM_STEPS steps."""

import sys

import torch

NUM_STEPS = 5


def seeded(rows: int, columns: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).to(dtype)


def train(case: str) -> list[torch.Tensor]:
    dtype_name, rows, columns, nesterov, adjust_lr_fn, ns_steps = case.split(",")
    dtype, rows, columns = getattr(torch, dtype_name), int(rows), int(columns)
    param = torch.nn.Parameter(seeded(rows, columns, 1, dtype))
    optimizer = torch.optim.Muon(
        [param],
        lr=0.02,
        weight_decay=0.3,
        momentum=0.9,
        nesterov=nesterov == "1",
        adjust_lr_fn=adjust_lr_fn,
        ns_steps=int(ns_steps),
    )
    for step in range(NUM_STEPS):
        param.grad = seeded(rows, columns, 100 + step, dtype)
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.75
    return [param.detach(), optimizer.state[param]["momentum_buffer"]]


def main() -> None:
    torch.set_num_threads(1)
    for case in sys.argv[1:]:
        for tensor in train(case):
            sys.stdout.buffer.write(bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()))


if __name__ == "__main__":
    main()
