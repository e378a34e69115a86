"""Conan's recipe of the library, without tests and tools: conan create . --build=missing

Other libraries (oneDNN, Gloo, JPEG, PNG, LMDB, zlib, JSON, CLI11) are those of the system, as CMakeLists.txt finds them.
"""
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class Weft(ConanFile):
    name = "weft"
    description = "A deep-learning framework in C++20 and CUDA, to be read and to be embedded"
    license = "MIT"
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"with_dnnl": [True, False], "with_gloo": [True, False], "with_cuda": [True, False]}
    default_options = {"with_dnnl": True, "with_gloo": True, "with_cuda": False}

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "core/base/version.h"))
        self.version = re.search(r'kVersion = "([^"]+)"', text).group(1)

    def export_sources(self):
        for pattern in ("*.h", "*.cc", "*.cu", "*.cuh", "CMakeLists.txt", "LICENSE", "tools/cmake/*", "tools/install/*"):
            copy(self, pattern, self.recipe_folder, self.export_sources_folder,
                 excludes=("bazel-*", ".git/*", ".bazel/*", ".gpu/*", "gpu-out/*", ".peer/*", "outputs/*",
                           "*/__pycache__/*", "tests/*", "benchmarks/*", "emulator/*", "examples/*"))

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for name in ("dnnl", "gloo", "cuda"):
            toolchain.variables[f"WEFT_WITH_{name.upper()}"] = bool(getattr(self.options, f"with_{name}"))
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.libs = ["weft"]
        self.cpp_info.set_property("cmake_target_name", "weft::weft")
        self.cpp_info.set_property("pkg_config_name", "weft")
