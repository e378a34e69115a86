#!/usr/bin/env python3
"""The folders that .gitignore names, which can be gigabytes, go into no image and no package."""
import os
import re


def mistakes(root):
    def text(name):
        with open(os.path.join(root, name), encoding='utf-8') as file:
            return file.read()

    folders = re.findall(r'^/(.*)/$', text('.gitignore'), re.M)
    if not folders:
        return ['.gitignore names no folder: this test reads it wrongly']
    in_image = text('.dockerignore').splitlines()
    in_package = re.findall(r'"([^"]+)/\*"', text('conanfile.py').split('excludes=')[1])
    return [f'{folder}/ of .gitignore is missing in {name}' for folder in folders
            for name, has in (('.dockerignore', in_image), ('the excludes of conanfile.py', in_package))
            if folder not in has]
