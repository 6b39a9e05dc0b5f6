"""Tensors of the program's checkpoint, read and written by torch."""

# [read and write
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

folder, elsewhere = sys.argv[1:]

tensors = {"output.weight": torch.empty(256, 256)}  # any of the keys
dcp.load(tensors, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)

dcp.save(tensors, storage_writer=HuggingFaceStorageWriter(elsewhere), no_dist=True)
# read and write]
assert tensors["output.weight"].isfinite().all()
