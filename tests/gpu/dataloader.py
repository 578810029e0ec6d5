"""A training loop whose DataLoader workers were forked after CUDA had started, as users write it.

Prints {"owner": PID, "other": first worker's PID} and trains until it is killed; its workers block in their pipe.
"""
import json
import multiprocessing
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if index > 64 * 10:
            time.sleep(600)  # storage that no longer answers: the worker never looks whether its parent lives
        return torch.full((1024,), float(index))


def main():
    model = torch.nn.Linear(1024, 4096).cuda()
    ballast = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    loader = DataLoader(Samples(), batch_size=64, num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    for step, batch in enumerate(loader):
        model(batch.cuda()).sum().backward()
        if step == 5:
            children = sorted(child.pid for child in multiprocessing.active_children())
            print(json.dumps({"owner": os.getpid(), "other": children[0], "all": children}), flush=True)
    return ballast


if __name__ == "__main__":
    sys.exit(main() is None)
