// numpy and PyTorch share memory with weft's tensors, both ways: dlpack_peer.py.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace {

TEST(DlpackPeer, NumpyAndPyTorchShareMemoryWithWeft) {
  const char* python = std::getenv("WEFT_PEER");
  if (python == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with torch and numpy";
  const std::string command = std::string(python) + " tests/peers/dlpack_peer.py " +
                              std::getenv("LIBWEFT") + " tests/peers/libdlpack_library.so";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
