// The cost of weft for a program that only links it: under 20 MB, and nothing from CUDA.
#include <cstdio>
#include <fstream>
#include <string>

#include "weft/weft.h"

int main() {
  std::string word;
  long peak = 0;
  for (std::ifstream status("/proc/self/status"); status >> word;) {
    if (word == "VmHWM:") status >> peak;
  }
  bool loaded = false;
  for (std::ifstream maps("/proc/self/maps"); maps >> word;) {
    for (const char* name : {"/libcuda", "/libcudnn", "/libcublas"}) {
      loaded |= word.find(name) != std::string::npos;
    }
  }
  std::printf("an empty main: %ld kB at most%s\n", peak, loaded ? ", and CUDA is loaded" : "");
  return peak > 0 && peak < 20'000 && !loaded ? 0 : 1;
}
