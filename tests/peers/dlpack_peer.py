"""numpy and PyTorch share memory with weft's tensors, both ways, by DLPack.

usage: dlpack_peer.py LIBWEFT LIBRARY   (dlpack_library.cc)
"""
import ctypes
import gc
import os
import subprocess
import sys
import tempfile

import numpy
import torch

ctypes.CDLL(os.path.abspath(sys.argv[1]), ctypes.RTLD_GLOBAL)
weft = ctypes.CDLL(os.path.abspath(sys.argv[2]))
for function in ('weft_share', 'weft_share_unversioned', 'weft_import', 'weft_import_unversioned', 'weft_share_again'):
    getattr(weft, function).restype = ctypes.c_void_p
    getattr(weft, function).argtypes = [ctypes.c_int if function in ('weft_share', 'weft_share_unversioned') else ctypes.c_void_p]
weft.weft_sum.restype = ctypes.c_double
weft.weft_sum.argtypes = [ctypes.c_void_p]
weft.weft_fill.argtypes = [ctypes.c_void_p, ctypes.c_double]
weft.weft_free.argtypes = [ctypes.c_void_p]
weft.weft_error.restype = ctypes.c_char_p
weft.weft_layout.restype = ctypes.POINTER(ctypes.c_size_t)

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype = ctypes.c_void_p
get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]

# A capsule keeps a pointer to its name.
NAMES = {True: (b'dltensor_versioned', b'used_dltensor_versioned'), False: (b'dltensor', b'used_dltensor')}

LAYOUT = '''
sizeof(DLTensor) offsetof(DLTensor,data) offsetof(DLTensor,device.device_type) offsetof(DLTensor,device.device_id)
offsetof(DLTensor,ndim) offsetof(DLTensor,dtype.code) offsetof(DLTensor,dtype.bits) offsetof(DLTensor,dtype.lanes)
offsetof(DLTensor,shape) offsetof(DLTensor,strides) offsetof(DLTensor,byte_offset) sizeof(DLManagedTensor)
offsetof(DLManagedTensor,dl_tensor) offsetof(DLManagedTensor,manager_ctx) offsetof(DLManagedTensor,deleter)
sizeof(DLManagedTensorVersioned) offsetof(DLManagedTensorVersioned,version.major) offsetof(DLManagedTensorVersioned,version.minor)
offsetof(DLManagedTensorVersioned,manager_ctx) offsetof(DLManagedTensorVersioned,deleter) offsetof(DLManagedTensorVersioned,flags)
offsetof(DLManagedTensorVersioned,dl_tensor) DLPACK_FLAG_BITMASK_READ_ONLY kDLCPU kDLCUDA kDLCUDAHost kDLInt kDLUInt kDLFloat
kDLBfloat kDLBool'''.split()


class Shared:
    """A tensor of weft's, by one of the numbers of made() or as an imported handle."""

    def __init__(self, which=None, handle=None, old=False):
        self.which, self.handle, self.old = which, handle, old

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        versioned = max_version is not None and max_version[0] >= 1 and not self.old
        if self.handle is not None:
            pointer = weft.weft_share_again(self.handle)
        else:
            pointer = (weft.weft_share if versioned else weft.weft_share_unversioned)(self.which)
        return new_capsule(pointer, NAMES[versioned][0], None)


def imported(array, versioned=True):
    capsule = array.__dlpack__(max_version=(1, 0)) if versioned else array.__dlpack__()
    unused, used = NAMES[versioned]
    handle = (weft.weft_import if versioned else weft.weft_import_unversioned)(get_pointer(capsule, unused))
    assert handle, weft.weft_error()
    set_name(capsule, used)
    return handle


def check_layout():
    """The structs and numbers of tensor/dlpack.h are those of the header that PyTorch has."""
    include = os.path.join(os.path.dirname(torch.__file__), 'include')
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, 'a.cc'), os.path.join(folder, 'a')
        with open(source, 'w', encoding='utf-8') as out:
            out.write('#include <ATen/dlpack.h>\n#include <cstddef>\n#include <cstdio>\nint main() {\n')
            out.writelines(f'  std::printf("%zu ", std::size_t({each}));\n' for each in LAYOUT)
            out.write('}\n')
        subprocess.run(['g++', '-I' + include, source, '-o', program], check=True)
        theirs = [int(n) for n in subprocess.run([program], check=True, stdout=subprocess.PIPE).stdout.split()]
    ours = weft.weft_layout()[:len(LAYOUT)]
    assert theirs == ours, [row for row in zip(LAYOUT, theirs, ours) if row[1] != row[2]]


def check_out():
    """numpy and PyTorch see weft's values, dtypes and strides, and keep the memory alive."""
    x = numpy.arange(24).reshape(2, 3, 4)
    expected = [x.astype('f4'), x.astype('f8').transpose(2, 1, 0), x.astype('i8')[:, :, 1:4:2], x.astype('?'),
                x.astype('u1'), numpy.broadcast_to(x.astype('i4')[1:2], (5, 3, 4)), x.astype('f4')[:, :0],
                numpy.array(7, 'f4')]
    for which, wanted in enumerate(expected):
        for old in (False, True):
            for take in (numpy.from_dlpack, torch.from_dlpack):
                got = take(Shared(which, old=old))
                array = got if take is numpy.from_dlpack else got.numpy()
                assert array.dtype == wanted.dtype and array.shape == wanted.shape, which
                assert numpy.array_equal(array, wanted), which
                assert wanted.size == 0 or array.strides == wanted.strides or 1 in array.shape, (which, array.strides)
    got = torch.from_dlpack(Shared(8))
    assert got.dtype == torch.bfloat16 and torch.equal(got.float(), torch.arange(24.).reshape(2, 3, 4))


def check_in():
    """weft sees theirs, writes reach both sides, and the memory lives as long as anyone uses it."""
    for versioned in (True, False):
        array = numpy.arange(6, dtype='f4').reshape(2, 3)
        tensor = torch.arange(6, dtype=torch.int64).reshape(2, 3).t()
        for theirs in (array, tensor):
            handle = imported(theirs, versioned)
            assert weft.weft_sum(handle) == 15
            theirs[1, 1] += 10
            assert weft.weft_sum(handle) == 25
            assert weft.weft_fill(handle, 2) == 0
            assert float(theirs.sum()) == 12
            weft.weft_free(handle)
    handle = imported(numpy.full(1000, 3.0))
    gc.collect()
    assert weft.weft_sum(handle) == 3000
    back = numpy.from_dlpack(Shared(handle=handle))
    weft.weft_free(handle)
    gc.collect()
    assert back.sum() == 3000


def check_read_only():
    array = numpy.arange(4.0)
    array.flags.writeable = False
    handle = imported(array)
    assert weft.weft_fill(handle, 1) == 1 and b'may only be read' in weft.weft_error(), weft.weft_error()
    assert not numpy.from_dlpack(Shared(handle=handle)).flags.writeable
    weft.weft_free(handle)
    assert array.tolist() == [0, 1, 2, 3]


def check_refusals():
    for array in (numpy.zeros(2, 'f2'), numpy.zeros(2, 'c8'), numpy.arange(3)[::-1], numpy.zeros(2, 'u4')):
        capsule = array.__dlpack__(max_version=(1, 0))
        assert not weft.weft_import(get_pointer(capsule, NAMES[True][0]))
        print(weft.weft_error().decode())


for check in (check_layout, check_out, check_in, check_read_only, check_refusals):
    check()
    print(f'{check.__name__}: ok')
