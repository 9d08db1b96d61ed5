"""Building the package generates the wire stubs from proto/ first.

By itself it is pure Python. Where BUCKETD_NATIVE names a folder, the wheel carries what lies in it, is for this platform, and has a
script for each program; deploy/wheel.sh fills such a folder and bundles the libraries that programs need.
"""

import os
import pathlib
import shutil
import sys

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

# isort: split
from distutils.command.build_scripts import build_scripts  # which setuptools brings

HERE = pathlib.Path(__file__).resolve().parent
NATIVE = pathlib.Path(os.environ["BUCKETD_NATIVE"]) if os.environ.get("BUCKETD_NATIVE") else None

# The package is found, not imported: that would take longer than most of what bucketctl does.
SCRIPT = '''#!python
"""Runs the program of this name that the package bucketd carries."""
import importlib.util
import os
import sys

(folder,) = importlib.util.find_spec("bucketd").submodule_search_locations
os.execv(os.path.join(folder, "_native", "{name}"), sys.argv)
'''

if (HERE.parent.parent / "proto" / "planner.proto").exists():
    sys.path.insert(0, str(HERE))
    import generate_wire

    generate_wire.main()


class PlatformWheel(bdist_wheel):
    def initialize_options(self):
        super().initialize_options()
        self.compression = "stored"  # auditwheel packs it again
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]  # any Python of the platform: programs link none


class WithNative(build_py):
    def run(self):
        super().run()
        into = pathlib.Path(self.build_lib, "bucketd", "_native")
        into.mkdir(parents=True, exist_ok=True)
        for path in sorted(NATIVE.iterdir()):
            shutil.copy2(path, into)


class Scripts(build_scripts):
    def run(self):
        pathlib.Path(self.build_dir).mkdir(parents=True, exist_ok=True)
        for name in self.scripts:
            pathlib.Path(self.build_dir, name).write_text(SCRIPT.format(name=name))


if NATIVE is None:
    setup()
else:
    programs = sorted(path.name for path in NATIVE.iterdir() if os.access(path, os.X_OK) and path.suffix != ".so")
    if not programs:
        sys.exit(f"setup.py: BUCKETD_NATIVE={NATIVE} holds no program")
    setup(scripts=programs, has_ext_modules=lambda: True,
          cmdclass={"bdist_wheel": PlatformWheel, "build_py": WithNative, "build_scripts": Scripts})
