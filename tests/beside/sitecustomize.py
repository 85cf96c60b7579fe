"""What Python runs first in the processes that tests start: `conftest` puts this folder on their path."""

import torchvision_operators  # noqa: F401
