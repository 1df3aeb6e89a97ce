import ctypes, sys
nvmf = ctypes.CDLL("libnvmf.so.0")
nvmf.nvmf_last_error.restype = ctypes.c_char_p
disk, block = ctypes.c_void_p(), ctypes.create_string_buffer(512)
if nvmf.nvmf_open(sys.argv[1].encode(), None, ctypes.byref(disk)) < 0:
    sys.exit(nvmf.nvmf_last_error().decode())
if nvmf.nvmf_pread(disk, block, ctypes.c_size_t(512), ctypes.c_uint64(0)) < 0:
    sys.exit(nvmf.nvmf_last_error().decode())
print(block.value.decode(errors="replace"))
nvmf.nvmf_close(disk)
