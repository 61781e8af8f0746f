"""What `python -m hybrid_des` runs."""

import sys

from hybrid_des.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
