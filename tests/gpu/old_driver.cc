// Replaces the driver: one that supports CUDA up to 12.8.
extern "C" int cuDriverGetVersion(int* version) {
  *version = 12080;
  return 0;
}
