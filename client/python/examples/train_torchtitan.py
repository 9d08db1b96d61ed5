"""torchtitan's own training program, with bucketd's plans: all that stands behind its name on the command line is torchtitan's.

    torchrun --nproc-per-node 8 train_torchtitan.py --module graph_trainer.llama3 --config graph_trainer_llama3_8b \
        --compile.pass_pipeline bucketd

BUCKETD_ADDRESS is the planner's address (host:port); without it the job starts one of its own.
"""

import os

import bucketd.torchtitan

if __name__ == "__main__":
    bucketd.torchtitan.configure(address=os.environ.get("BUCKETD_ADDRESS"))
    from torchtitan.train import main

    main()
