"""A small training loop with PyTorch's caching allocator: about 1 GiB of parameters, gradients and Adam's state.

Prints {"owner": PID, "other": 0} when its memory no longer grows, and then waits to be killed.
"""
import json
import os
import time

import torch


def main():
    layers = [torch.nn.Linear(4096, 4096) for _ in range(4)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(20):
        loss = model(torch.randn(512, 4096, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(json.dumps({"owner": os.getpid(), "other": 0}), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
