// In place of a driver: one that knows CUDA up to 12.8.
extern "C" int cuDriverGetVersion(int* version) {
  *version = 12080;
  return 0;
}
