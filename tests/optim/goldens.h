// Written by write_goldens.py with PyTorch 2.11.0. Do not edit.
#pragma once

#include <vector>

namespace weft::goldens {

inline const std::vector<double> sgd = {0x1.448caab8a5ce5p-1, -0x1.63e81450efdc9p+0, 0x1.fbba9bcfd4bf1p+0, 0x1.2fa50efdc9c4ep-2, -0x1.ad12b55ef1fddp-3};
inline const std::vector<double> sgd_momentum = {0x1.0512fbb89302ep-1, -0x1.3ef39417583aap+0, 0x1.ae32347eb5542p+0, 0x1.bcfa819d74660p-3, -0x1.c5ffa249cf123p-3};
inline const std::vector<double> sgd_nesterov = {0x1.373333c676b40p-4, -0x1.f0395ba0f5095p-2, 0x1.cc7b92a8aa269p-2, -0x1.1dee47c257163p-6, -0x1.42c0dd41943e0p-3};
inline const std::vector<double> adam = {0x1.fd7c76515add0p-1, -0x1.fec4eea0bcaafp+0, 0x1.7f6049f793395p+1, 0x1.faef6cc17d74cp-2, -0x1.fe206274e9f91p-3};
inline const std::vector<double> adam_decay = {0x1.7efbaddfc02ecp-1, -0x1.c0117cbe7d851p+0, 0x1.5fe4f89019097p+1, 0x1.fac576cbf7051p-3, -0x1.094b77e027f54p-3};
inline const std::vector<double> adamw = {0x1.805df5b9eabffp-1, -0x1.c0fbe56ef746fp+0, 0x1.5fcd604598a0bp+1, 0x1.fedd2aa51b976p-3, -0x1.69049dee1e0bbp-3};

}  // namespace weft::goldens
