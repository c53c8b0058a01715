"""What every test of this repository may use.

Nothing here ignores a folder: the files under exercises/ and reference/ are collected by the plugin, as students' are.
"""

pytest_plugins = ["pytester"]
