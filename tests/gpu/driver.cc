// Replaces the driver: one that supports CUDA up to DRIVER_CUDA, an environment variable, as 12080
// for 12.8.
#include <cstdlib>

extern "C" int cuDriverGetVersion(int* version) {
  const char* const supported = std::getenv("DRIVER_CUDA");
  *version = supported ? std::atoi(supported) : 12080;
  return 0;
}
