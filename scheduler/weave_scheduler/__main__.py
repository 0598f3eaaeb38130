"""``python -m weave_scheduler`` is the console command ``weave``."""

from weave_scheduler.cli import main

if __name__ == "__main__":
    main()
