from helpers.language_models import folder  # noqa: F401 - a fixture
from helpers.workspace import world  # noqa: F401 - a fixture
