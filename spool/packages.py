"""The place of this project's packages."""

import os

BESIDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # or the path of the zip file with the packages
