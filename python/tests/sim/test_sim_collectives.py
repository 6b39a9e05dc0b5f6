"""Each collective and message on simulated devices against the same on the CPU, bit for bit; their
virtual times; and that a forgotten wait is found."""

import json
import pathlib
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from swapline import sim

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
MOVED_DTYPES = DTYPES + [torch.int16, torch.complex64, torch.float8_e4m3fn]
REDUCE_OPS = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]


def values(rank: int, n: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    made = torch.randn(n, generator=torch.Generator().manual_seed(rank + 1)) * 3
    return made.to(dtype).to(device)


def reductions(rank, size, device, dtype, op):
    full = values(rank, 12 * size, dtype, device)
    reduced = full.clone()
    dist.all_reduce(reduced, op=op)
    to_one = full.clone()
    dist.reduce(to_one, dst=size - 1, op=op)
    share = torch.empty(12, dtype=dtype, device=device)
    dist.reduce_scatter_tensor(share, full, op=op)
    of_list = torch.empty(12, dtype=dtype, device=device)
    dist.reduce_scatter(of_list, list(full.chunk(size)), op=op)
    several = [full[:5].clone(), full[5:].clone()]
    with dist._coalescing_manager(async_ops=True) as work:
        for each in several:
            dist.all_reduce(each, op=op)
    work.wait()
    pair = [torch.empty(6, dtype=dtype, device=device) for _ in range(2)]
    with dist._coalescing_manager():
        for out, each in zip(pair, full.chunk(2)):
            dist.reduce_scatter_tensor(out, each[: 6 * size].contiguous(), op=op)
    return [reduced, share, of_list, *several, *pair] + ([to_one] if rank == size - 1 else [])


def moves(rank, size, device):
    """Collectives that only move values; gloo on the CPU takes fewer dtypes, so float32."""
    full = values(rank, 6 * size, torch.float32, device)
    mine = full[:6].clone()
    sent = full.clone()
    dist.broadcast(sent, src=1)
    gathered = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(gathered, mine)
    whole = torch.empty(6 * size, device=device)
    dist.all_gather_into_tensor(whole, mine)
    pair = [torch.empty(size * 2, device=device), torch.empty(size * 4, device=device)]
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(pair[0], mine[:2])
        dist.all_gather_into_tensor(pair[1], mine[2:])
    to_one = [torch.zeros_like(mine) for _ in range(size)] if rank == 0 else None
    dist.gather(mine, to_one, dst=0)
    from_one = torch.empty(6, device=device)
    dist.scatter(from_one, list(full.chunk(size)) if rank == 1 else None, src=1)
    exchanged = torch.empty_like(full)
    dist.all_to_all_single(exchanged, full)
    rows = [[1, 2], [3, 4]] if size == 2 else None
    uneven = torch.empty(sum(r[rank] for r in rows), 2, device=device)
    table = torch.arange(2 * sum(rows[rank]), device=device).view(-1, 2) * 1.0 + rank
    dist.all_to_all_single(uneven, table, [r[rank] for r in rows], rows[rank])
    lists = [torch.empty(6, device=device) for _ in range(size)]
    dist.all_to_all(lists, list(full.chunk(size)))
    return [sent, *gathered, whole, *pair, *(to_one or []), from_one, exchanged, uneven, *lists]


def messages(rank, size):
    peer = 1 - rank
    mine = values(rank, 10, torch.float32, "sim").view(2, 5)
    got = [torch.zeros(2, 5, device="sim") for _ in range(4)]
    # Both send first: a send must not wait for its receiver.
    dist.send(mine, peer)
    dist.recv(got[0], peer)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine + 1, peer), dist.P2POp(dist.irecv, got[1], peer)]
    )
    for work in works:
        work.wait()
    # Received in another order than waited for, and from anybody.
    arriving = dist.irecv(got[2], peer, tag=7)
    dist.isend(mine + 2, peer, tag=7)
    dist.isend(mine + 3, peer, tag=8)
    arriving.wait()
    assert dist.recv(got[3], tag=8) == peer
    expected = values(peer, 10, torch.float32, "cpu").view(2, 5)
    for step, each in enumerate(got):
        assert torch.equal(each.cpu(), expected + step)


def agrees_with_cpu(rank, size):
    for dtype in DTYPES:
        for op in REDUCE_OPS:
            if op == dist.ReduceOp.AVG and not dtype.is_floating_point:
                continue
            for on_sim, on_cpu in zip(
                reductions(rank, size, "sim", dtype, op), reductions(rank, size, "cpu", dtype, op)
            ):
                assert torch.equal(on_sim.cpu(), on_cpu), (dtype, op)
    for on_sim, on_cpu in zip(moves(rank, size, "sim"), moves(rank, size, "cpu")):
        assert torch.equal(on_sim.cpu(), on_cpu)
    messages(rank, size)
    with torch.inference_mode():
        moves(rank, size, "sim")
        messages(rank, size)
    # What gloo cannot carry on the CPU is carried as bytes here.
    for dtype in MOVED_DTYPES:
        mine = values(rank, 4, torch.float32, "sim").to(dtype)
        whole = torch.empty(4 * size, dtype=dtype, device="sim")
        dist.all_gather_into_tensor(whole, mine)
        expected = torch.cat([values(r, 4, torch.float32, "cpu").to(dtype) for r in range(size)])
        assert torch.equal(whole.cpu().view(torch.uint8), expected.view(torch.uint8)), dtype
    # Lists of parts of different sizes, which gloo takes only as one tensor.
    rows = [[1, 2], [3, 4]]
    parts = [torch.full((n, 2), float(rank), device="sim") for n in rows[rank]]
    got = [torch.empty(rows[r][rank], 2, device="sim") for r in range(size)]
    dist.all_to_all(got, parts)
    assert all((each == r).all() for r, each in enumerate(got))
    # A factor, which gloo does not know.
    for is_scattered in (False, True):
        full = values(rank, 8, torch.float32, "sim")
        expected = sum(values(r, 8, torch.float32, "cpu") / 3 for r in range(size))
        op = dist._make_nccl_premul_sum(1 / 3)
        if is_scattered:
            share = torch.empty(8 // size, device="sim")
            dist.reduce_scatter_tensor(share, full, op=op)
            full, expected = share, expected.chunk(size)[rank]
        else:
            dist.all_reduce(full, op=op)
        torch.testing.assert_close(full.cpu(), expected)
    # A future orders the stream that is current when it is waited for.
    full = values(rank, 8, torch.float32, "sim")
    work = dist.all_reduce(full, async_op=True)
    work.get_future().wait()
    expected = sum(values(r, 8, torch.float32, "cpu") for r in range(size))
    assert torch.equal((full * 1).cpu(), expected)
    # So does waiting for the whole device.
    got = torch.zeros(8, device="sim")
    dist.isend(full, 1 - rank)
    arriving = dist.irecv(got, 1 - rank)
    torch.sim.synchronize()
    assert torch.equal(got, full)
    assert arriving.is_completed()
    dist.barrier(device_ids=[0])
    assert sim.num_races() == 0, sim.races()[0]


def takes_its_time(rank, size):
    """The formulas of the cost model, one after another on an idle machine."""

    def took(function):
        dist.barrier(device_ids=[0])
        torch.sim.synchronize()
        begin = torch.sim.Event(enable_timing=True)
        end = torch.sim.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        torch.sim.synchronize()
        return begin.elapsed_time(end)

    spec = sim.options()["spec"]
    full = torch.empty(1 << 20, dtype=torch.uint8, device="sim")
    other = torch.empty(1 << 20, dtype=torch.uint8, device="sim")
    share = torch.empty((1 << 20) // size, dtype=torch.uint8, device="sim")
    whole_ms = (1 << 20) / spec["peer_bytes_per_s"] * 1e3
    fraction = (size - 1) / size
    for function, moved in (
        (lambda: dist.all_reduce(full), 2 * fraction),
        (lambda: dist.all_gather_into_tensor(full, share), fraction),
        (lambda: dist.reduce_scatter_tensor(share, full), fraction),
        (lambda: dist.broadcast(full, 0), 1),
        (lambda: dist.all_to_all_single(full, other), fraction),
    ):
        first, again = took(function), took(function)
        assert first == again
        expected = moved * whole_ms + (spec["peer_latency"] + spec["host_op_time"]) / 1e6
        assert first == pytest.approx(expected, abs=2e-6), (moved, expected)

    # It starts when the last rank is ready: rank 1 is 5 ms behind.
    dist.barrier(device_ids=[0])
    before = sim.time_ms()
    if rank == 1:
        sim.advance_host_ms(5)
    dist.all_reduce(full)
    late = sim.time_ms() - before
    assert late > 5
    ends = [None] * size
    dist.all_gather_object(ends, sim.time_ms())
    assert ends[0] == ends[1]

    # A message that was sent early arrives when its receiver is there.
    dist.barrier(device_ids=[0])
    before = sim.time_ms()
    if rank == 0:
        dist.send(full, 1)
        torch.sim.synchronize()
        assert sim.time_ms() - before < 5
    else:
        sim.advance_host_ms(5)
        dist.recv(full, 0)
        torch.sim.synchronize()
        assert 5 < sim.time_ms() - before < 5 + whole_ms + 0.1

    # Compute goes on beside a collective until it is waited for.
    work = dist.all_reduce(full, async_op=True)
    event = torch.sim.Event(enable_timing=True)
    torch.ones(4, device="sim").mul_(2)
    event.record()
    work.wait()
    after = torch.sim.Event(enable_timing=True)
    after.record()
    torch.sim.synchronize()
    assert event.elapsed_time(after) > whole_ms / 2


def is_found_without_wait(rank, size):
    for kind in ("all_reduce", "irecv", "isend"):
        buffer = torch.ones(256, device="sim")
        other = torch.ones(256, device="sim")
        if kind == "all_reduce":
            work = dist.all_reduce(buffer, async_op=True)
        elif kind == "irecv":
            dist.isend(other, 1 - rank)
            work = dist.irecv(buffer, 1 - rank)
        else:
            work = dist.isend(buffer, 1 - rank)
        if kind == "irecv":
            other + 1  # only read by the send: no race
            assert sim.num_races() == 0
        buffer.add_(1)  # too early
        assert sim.num_races() == 1, (kind, sim.num_races())
        report = sim.races()[0]
        assert kind.removeprefix("i") in report and "add_" in report, report
        sim.clear_races()
        work.wait()
        buffer.add_(1)
        if kind == "isend":
            dist.recv(other, 1 - rank)
        assert sim.num_races() == 0, (kind, sim.races()[0])
    # A tensor that is dropped before its message has left stays alive until then, and its memory is
    # used again only behind it.
    dist.barrier(device_ids=[0])
    torch.sim.synchronize()
    before = sim.memory()["allocated_bytes"]
    dist.isend(torch.ones(1 << 18, device="sim"), 1 - rank)
    assert sim.memory()["allocated_bytes"] == before + (1 << 20)
    torch.ones(1 << 18, device="sim").add_(1)
    dist.recv(torch.empty(1 << 18, device="sim"), 1 - rank)
    torch.sim.synchronize()
    assert sim.memory()["allocated_bytes"] == before


def refuses(rank, size):
    x = torch.ones(4, 4, device="sim")
    with pytest.raises(RuntimeError, match="contiguous"):
        dist.all_reduce(x.t())
    with pytest.raises(RuntimeError, match="one device"):
        dist.all_gather([torch.ones(2, device="sim:1"), torch.ones(2, device="sim")], x[0, :2])
    with pytest.raises((RuntimeError, ValueError), match="split|dim"):
        dist.all_to_all_single(torch.empty(3, device="sim"), torch.ones(3, device="sim"))
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        dist.all_reduce(torch.ones(2, dtype=torch.int16, device="sim"))
    # Messages of another size than expected.
    if rank == 0:
        dist.send(torch.ones(2, device="sim"), 1)
    else:
        expected = torch.ones(3, device="sim")
        with pytest.raises(RuntimeError, match="sent 8 bytes.*holds 12"):
            dist.recv(expected, 0)
        assert expected.add_(1).tolist() == [2.0] * 3
    # All goes on as before.
    y = torch.ones(4, device="sim")
    dist.all_reduce(y)
    assert y.tolist() == [2.0] * 4


def survives_new_settings(rank, size, folder):
    with sim.settings("h100-sxm", trace=True, late_copies=True):
        x = torch.full((1 << 16,), float(rank + 1), device="sim")
        host = torch.empty(1 << 16, pin_memory=True)
        side = torch.sim.Stream()
        dist.all_reduce(x)
        side.wait_stream(torch.sim.current_stream())
        with torch.sim.stream(side):
            host.copy_(x, non_blocking=True)
        torch.sim.synchronize()
        assert host.eq(3).all()
        path = pathlib.Path(folder) / f"trace{rank}.json"
        sim.trace(path)
        spans = json.loads(path.read_text())["traceEvents"]
        peer = [s for s in spans if s["ph"] == "X" and s["tid"] == 102]
        assert [s["name"] for s in peer] == ["all_reduce"]
        assert peer[0]["dur"] == pytest.approx(10 + (1 << 18) / 450e9 * 1e6, abs=0.01)
        del x, host
    with sim.settings("h100-sxm", capacity="64GiB", dry_run=True):
        x = torch.empty(1 << 32, device="sim")  # 16 GiB that nobody has
        dist.all_reduce(x)
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        assert sim.time_ms() > (1 << 34) / 450e9 * 1e3
        del x


def all_of_it(rank, size, folder):
    warnings.simplefilter("ignore")
    for late_copies in (False, True):
        with sim.settings(late_copies=late_copies):
            agrees_with_cpu(rank, size)
    takes_its_time(rank, size)
    is_found_without_wait(rank, size)
    refuses(rank, size)
    survives_new_settings(rank, size, folder)
    # The last message may be taken after its sender has left.
    if rank == 0:
        dist.send(torch.ones(4, device="sim"), 1)
    else:
        time.sleep(0.5)
        last = torch.zeros(4, device="sim")
        dist.recv(last, 0)
        assert last.tolist() == [1.0] * 4


def test_two_ranks(tmp_path):
    run_ranks(all_of_it, str(tmp_path))


def sums_in_order(rank, size):
    warnings.simplefilter("ignore")
    for dtype in (torch.float32, torch.bfloat16):
        on_sim = reductions(rank, size, "sim", dtype, dist.ReduceOp.SUM)
        on_cpu = reductions(rank, size, "cpu", dtype, dist.ReduceOp.SUM)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(on_sim, on_cpu))
    # Groups of some ranks, each with times of its own.
    halves = [dist.new_group([0, 1]), dist.new_group([2])]
    mine = halves[0] if rank < 2 else halves[1]
    x = torch.ones(4, device="sim")
    dist.all_reduce(x, group=mine)
    assert x.tolist() == [2.0 if rank < 2 else 1.0] * 4


def test_three_ranks_sum_as_gloo_does():
    run_ranks(sums_in_order, size=3)
