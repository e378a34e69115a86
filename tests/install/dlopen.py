"""Opens the plugin from Python and computes in two threads; prints what it says of cuda:0."""
import ctypes
import sys
import threading

plugin = ctypes.CDLL(sys.argv[1])
plugin.plugin_cuda.restype = ctypes.c_char_p
results = [plugin.plugin_train()]
thread = threading.Thread(target=lambda: results.append(plugin.plugin_train()))
thread.start()
thread.join()
print(plugin.plugin_cuda().decode())
sys.exit(0 if results == [0, 0] else 1)
