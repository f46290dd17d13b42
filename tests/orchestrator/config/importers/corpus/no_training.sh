#!/bin/bash
# Sets up a node.
module load cuda/12.4
pip install -r requirements.txt
python -c 'import torch; print(torch.cuda.device_count())'
