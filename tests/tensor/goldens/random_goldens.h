// Written by write_random_goldens.py with PyTorch 2.11.0+cu130. Do not edit.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::testing {

// In the order drawn, after manual_seed(7).
inline const std::vector<double> kRand23 = {0x1.11e15e0000000p-1, 0x1.9726200000000p-3,
                                            0x1.5184320000000p-1, 0x1.5053ec0000000p-1,
                                            0x1.dcb2180000000p-3, 0x1.b3434c0000000p-2};
inline const std::vector<double> kUniform5F64 = {0x1.488faa3930802p+0, 0x1.4e6b3629067e7p+1,
                                                 0x1.194f1d4704c9dp+1, -0x1.0d89790f7e943p-1,
                                                 0x1.9b72818cbe2d2p-1};
inline const std::vector<double> kUniform19 = {
    0x1.c356d00000000p-4, -0x1.b531e00000000p-3, 0x1.e1329c0000000p-3, -0x1.91a0680000000p-3,
    0x1.8811100000000p-3, -0x1.63a5000000000p-5, 0x1.075dfc0000000p-3, 0x1.8f0c380000000p-4,
    0x1.56eb000000000p-7, 0x1.7de0000000000p-5,  0x1.84d12c0000000p-3, 0x1.0759b80000000p-4,
    0x1.0fa3e80000000p-3, -0x1.8c0fe80000000p-3, 0x1.6c7c4c0000000p-3, 0x1.606de00000000p-4,
    0x1.0361600000000p-4, 0x1.1aebf00000000p-5,  0x1.f32a280000000p-4};
inline const std::vector<double> kRandn20 = {
    0x1.2630180000000p+1,  0x1.ea094c0000000p-1,  -0x1.52e04e0000000p-1, -0x1.a82ade0000000p-1,
    0x1.de5b060000000p-1,  -0x1.8749660000000p-2, -0x1.2ab9920000000p+0, 0x1.744d3a0000000p-2,
    -0x1.43376c0000000p-2, -0x1.106ca40000000p-1, 0x1.32523e0000000p-2,  -0x1.6ba2400000000p+0,
    0x1.8225860000000p-1,  0x1.6157fc0000000p-1,  -0x1.2772c00000000p-3, 0x1.9caf180000000p+0,
    0x1.912f060000000p+0,  -0x1.e0af860000000p-1, -0x1.3ca9fa0000000p+0, -0x1.0046ac0000000p-4};
inline const std::vector<double> kRandn5 = {-0x1.b42e4a0000000p+0, 0x1.3fe4540000000p-1,
                                            0x1.e9f7780000000p-4, -0x1.9c192e0000000p-1,
                                            0x1.9dbc120000000p+0};
inline const std::vector<double> kNormal17F64 = {
    0x1.5b282e5a6703ep+0, 0x1.25fd70ef3f585p+0, 0x1.70587c0ba3f42p-1, 0x1.59a89db551b4fp+0,
    0x1.5bf636d0f4c28p+0, 0x1.0ba3459c38420p-2, 0x1.8fac6f4f3c7f9p-1, 0x1.39228cfe005d5p+0,
    0x1.2f3b90b8578c4p+0, 0x1.34688271ee13fp+0, 0x1.bbf27b9aff08ap+0, 0x1.4a0506442c7b9p+0,
    0x1.c8d6a4b75be2ep+0, 0x1.a7d1a6565860ep+0, 0x1.190c6b54a14b2p-1, 0x1.9f572ad080d10p+0,
    0x1.7a925a77a8334p-3};
inline const std::vector<double> kRand4After = {0x1.08c2ea0000000p-1, 0x1.7c2b180000000p-2,
                                                0x1.774a800000000p-7, 0x1.4a05800000000p-5};
inline const std::vector<double> kRandperm11 = {9, 2, 8, 5, 1, 10, 7, 6, 3, 4, 0};
inline const std::vector<double> kRand2Last = {0x1.2a03a00000000p-5, 0x1.7012340000000p-1};

}  // namespace weft::testing
