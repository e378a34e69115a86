// Written by write_composed_goldens.py with PyTorch 2.11.0. Do not edit.
#pragma once

#include <vector>

namespace weft::goldens {

inline constexpr double inf = __builtin_inf(), nan = __builtin_nan("");  // as Python writes them

inline const std::vector<double> std_all_drop_y = {0x1.31bb9dfaa64a6p+1};
inline const std::vector<double> std_all_drop_grad0 = {
    -0x1.2dee3bdb454fdp-4, 0x1.9830a8a2dd042p-5,  0x1.c698702cf1b16p-6,  0x1.733e3c50a56b5p-8,
    -0x1.0cf952049efbdp-6, -0x1.3b61198eb3a94p-5, -0x1.f0458a1b17d48p-5, 0x1.01e3cb1f27e7ap-4,
    0x1.4ee325b1eba3dp-5,  0x1.33fd6a4b0ef12p-6,  -0x1.ae5bb66dcb2c9p-9, -0x1.9f9457e681bc4p-6,
    -0x1.84ae9c7fa5096p-5, -0x1.1cc98686049a6p-4, 0x1.ba7a134d5e6efp-5,  0x1.0595a2c0fa43bp-5,
    0x1.42c4c8d25861bp-7,  -0x1.90ccf95f384bfp-7, -0x1.1917aee4323e4p-5, -0x1.cdfc1f7096699p-5,
    0x1.13088074689d1p-4,  0x1.712c905c6d0edp-5,  0x1.78903fa011c6dp-6,  0x1.d8ebd0e92e086p-11};
inline const std::vector<double> logsumexp_all_drop_y = {0x1.4469397584d16p+2};
inline const std::vector<double> logsumexp_all_drop_grad0 = {
    0x1.e324f7a577242p-14, 0x1.a21df9b44375fp-4,  0x1.f130d0832a463p-6,  0x1.279bf8eda2483p-7,
    0x1.5f83aeda83f31p-9,  0x1.a1fdfffc2805dp-11, 0x1.f10acab955e1bp-13, 0x1.ae24f215ec06ap-3,
    0x1.ff7e130799356p-5,  0x1.301cced243897p-6,  0x1.69a032ad53b5fp-8,  0x1.ae040ce70a692p-10,
    0x1.ff56f53f2d05ep-12, 0x1.30058d08fe7a1p-13, 0x1.071a5356e7735p-3,  0x1.38dc42b3b6f22p-5,
    0x1.74072c0d4f9f2p-7,  0x1.ba62a4427087fp-9,  0x1.0706346c78a7cp-10, 0x1.38c455a763dabp-12,
    0x1.0eabc9805d9d2p-2,  0x1.41dc21ad2090bp-4,  0x1.7ebabf49b9bc0p-6,  0x1.c71c520fa08fcp-8};
inline const std::vector<double> std_all_keep_y = {0x1.31bb9dfaa64a6p+1};
inline const std::vector<double> std_all_keep_grad0 = {
    0x1.2dee3bdb454fdp-4,  -0x1.9830a8a2dd042p-5, -0x1.c698702cf1b16p-6, -0x1.733e3c50a56b5p-8,
    0x1.0cf952049efbdp-6,  0x1.3b61198eb3a94p-5,  0x1.f0458a1b17d48p-5,  -0x1.01e3cb1f27e7ap-4,
    -0x1.4ee325b1eba3dp-5, -0x1.33fd6a4b0ef12p-6, 0x1.ae5bb66dcb2c9p-9,  0x1.9f9457e681bc4p-6,
    0x1.84ae9c7fa5096p-5,  0x1.1cc98686049a6p-4,  -0x1.ba7a134d5e6efp-5, -0x1.0595a2c0fa43bp-5,
    -0x1.42c4c8d25861bp-7, 0x1.90ccf95f384bfp-7,  0x1.1917aee4323e4p-5,  0x1.cdfc1f7096699p-5,
    -0x1.13088074689d1p-4, -0x1.712c905c6d0edp-5, -0x1.78903fa011c6dp-6, -0x1.d8ebd0e92e086p-11};
inline const std::vector<double> logsumexp_all_keep_y = {0x1.4469397584d16p+2};
inline const std::vector<double> logsumexp_all_keep_grad0 = {
    -0x1.e324f7a577242p-14, -0x1.a21df9b44375fp-4,  -0x1.f130d0832a463p-6,  -0x1.279bf8eda2483p-7,
    -0x1.5f83aeda83f31p-9,  -0x1.a1fdfffc2805dp-11, -0x1.f10acab955e1bp-13, -0x1.ae24f215ec06ap-3,
    -0x1.ff7e130799356p-5,  -0x1.301cced243897p-6,  -0x1.69a032ad53b5fp-8,  -0x1.ae040ce70a692p-10,
    -0x1.ff56f53f2d05ep-12, -0x1.30058d08fe7a1p-13, -0x1.071a5356e7735p-3,  -0x1.38dc42b3b6f22p-5,
    -0x1.74072c0d4f9f2p-7,  -0x1.ba62a4427087fp-9,  -0x1.0706346c78a7cp-10, -0x1.38c455a763dabp-12,
    -0x1.0eabc9805d9d2p-2,  -0x1.41dc21ad2090bp-4,  -0x1.7ebabf49b9bc0p-6,  -0x1.c71c520fa08fcp-8};
inline const std::vector<double> std_one_drop_y = {
    0x1.92e6e1cec76bdp+1, 0x1.3b17dcc359e37p+1, 0x1.3b17dcc359e36p+1, 0x1.3b17dcc359e37p+1,
    0x1.92e6e1cec76bdp+1, 0x1.92e6e1cec76bdp+1, 0x1.3b17dcc359e36p+1, 0x1.3b17dcc359e36p+1};
inline const std::vector<double> std_one_drop_grad0 = {
    0x1.0000000000000p-1,   0x1.3cbaad7d77536p-2,  0x1.65ba71a61afb7p-3,  -0x1.20ba8fd25ac1fp-7,
    -0x1.4551e4eab86c6p-56, -0x1.826ebfdbf0edap-2, -0x1.b4745883276bcp-3, 0x1.902cc539b3f16p-5,
    -0x1.0000000000000p-1,  0x1.16d04979e668fp-4,  0x1.3ae79b7431c13p-5,  -0x1.47fe21451d40ep-5,
    0x1.b46478c4e250cp-4,   0x1.085f65bd86b95p-2,  -0x1.749899d699d8cp-2, 0x1.8eba35cebea3bp-2,
    -0x1.9feb5d80528a1p-57, 0x1.f7f086203de7ap-56, 0x1.c6982227e1290p-2,  -0x1.e679f12a5dea0p-2,
    -0x1.b46478c4e250cp-4,  -0x1.085f65bd86b94p-2, -0x1.47fe21451d40ap-4, 0x1.5efeed6e7d196p-4};
inline const std::vector<double> logsumexp_one_drop_y = {
    0x1.2b69bdb38d926p+1, 0x1.7af409b07a0cap+1, 0x1.bf5b844857cefp+0, 0x1.c76a93f4813d3p+1,
    0x1.e41e631fe3d5ep+1, 0x1.48d81b9395b0ep+1, 0x1.98626790822b0p+1, 0x1.fa384008680bfp+0};
inline const std::vector<double> logsumexp_one_drop_grad0 = {
    -0x1.cee349d63c3c8p-10, 0x1.2bdbdc31a1a8cp-1,   0x1.52ac937653891p-2,  0x1.e336cda58e34fp-9,
    -0x1.50c6d04732310p-5,  0x1.2bc4edaf51c45p-8,   0x1.5292ad0b33ee5p-9,  0x1.5f90a8df56ed8p-4,
    -0x1.ea0c2156a1bedp-1,  0x1.b43293358c74dp-4,   0x1.eca947f2ebd6cp-5,  0x1.5f75c61493e34p-11,
    -0x1.8a886274200f1p-12, -0x1.de06e273b2274p-11, -0x1.60c0001eb5cc5p-1, 0x1.797d4abb05698p-1,
    -0x1.1f0b63a1686f0p-7,  -0x1.5bca86687a5d9p-6,  -0x1.60a50621453e4p-8, 0x1.79606c6716184p-8,
    -0x1.a1ae7e5991b9dp-3,  -0x1.fa131fa34bf39p-2,  -0x1.00918c7b721d6p-3, 0x1.128ffe58259c4p-3};
inline const std::vector<double> std_one_keep_y = {
    0x1.92e6e1cec76bdp+1, 0x1.3b17dcc359e37p+1, 0x1.3b17dcc359e36p+1, 0x1.3b17dcc359e37p+1,
    0x1.92e6e1cec76bdp+1, 0x1.92e6e1cec76bdp+1, 0x1.3b17dcc359e36p+1, 0x1.3b17dcc359e36p+1};
inline const std::vector<double> std_one_keep_grad0 = {
    0x1.0000000000000p-1,   0x1.3cbaad7d77536p-2,  0x1.65ba71a61afb7p-3,  -0x1.20ba8fd25ac1fp-7,
    -0x1.4551e4eab86c6p-56, -0x1.826ebfdbf0edap-2, -0x1.b4745883276bcp-3, 0x1.902cc539b3f16p-5,
    -0x1.0000000000000p-1,  0x1.16d04979e668fp-4,  0x1.3ae79b7431c13p-5,  -0x1.47fe21451d40ep-5,
    0x1.b46478c4e250cp-4,   0x1.085f65bd86b95p-2,  -0x1.749899d699d8cp-2, 0x1.8eba35cebea3bp-2,
    -0x1.9feb5d80528a1p-57, 0x1.f7f086203de7ap-56, 0x1.c6982227e1290p-2,  -0x1.e679f12a5dea0p-2,
    -0x1.b46478c4e250cp-4,  -0x1.085f65bd86b94p-2, -0x1.47fe21451d40ap-4, 0x1.5efeed6e7d196p-4};
inline const std::vector<double> logsumexp_one_keep_y = {
    0x1.2b69bdb38d926p+1, 0x1.7af409b07a0cap+1, 0x1.bf5b844857cefp+0, 0x1.c76a93f4813d3p+1,
    0x1.e41e631fe3d5ep+1, 0x1.48d81b9395b0ep+1, 0x1.98626790822b0p+1, 0x1.fa384008680bfp+0};
inline const std::vector<double> logsumexp_one_keep_grad0 = {
    -0x1.cee349d63c3c8p-10, 0x1.2bdbdc31a1a8cp-1,   0x1.52ac937653891p-2,  0x1.e336cda58e34fp-9,
    -0x1.50c6d04732310p-5,  0x1.2bc4edaf51c45p-8,   0x1.5292ad0b33ee5p-9,  0x1.5f90a8df56ed8p-4,
    -0x1.ea0c2156a1bedp-1,  0x1.b43293358c74dp-4,   0x1.eca947f2ebd6cp-5,  0x1.5f75c61493e34p-11,
    -0x1.8a886274200f1p-12, -0x1.de06e273b2274p-11, -0x1.60c0001eb5cc5p-1, 0x1.797d4abb05698p-1,
    -0x1.1f0b63a1686f0p-7,  -0x1.5bca86687a5d9p-6,  -0x1.60a50621453e4p-8, 0x1.79606c6716184p-8,
    -0x1.a1ae7e5991b9dp-3,  -0x1.fa131fa34bf39p-2,  -0x1.00918c7b721d6p-3, 0x1.128ffe58259c4p-3};
inline const std::vector<double> std_two_drop_y = {0x1.74e0da2b4f2f0p+1, 0x1.1b04baed748dfp+1,
                                                   0x1.a46e61473d82fp+0};
inline const std::vector<double> std_two_drop_grad0 = {
    0x1.87e0547b2d6c0p-3, -0x1.21c065ffe9babp-3, -0x1.4fd64b2194c08p-4, -0x1.70af290d582f8p-6,
    0x1.21753266222d4p-8, -0x1.9b2961c5708c3p-5, -0x1.ad40b4ebd2aefp-4, 0x1.9b11fdcbb5decp-3,
    0x1.33e1e6748834ap-5, -0x1.01dd8c5682b62p-8, -0x1.7459498a28e25p-5, -0x1.643b70c4c0b6fp-4,
    0x1.ede6c7b8714c6p-4, 0x1.70c8a44b58009p-3,  -0x1.38d8162fbf261p-3, -0x1.7e05ab813f979p-4,
    0x1.1c288bd1d6e2ap-4, 0x1.e3e43e45e3cd0p-7,  -0x1.465ef880bbde7p-5, -0x1.82db804978582p-4,
    0x1.643b70c4c0b6fp-4, 0x1.7459498a28e27p-5,  0x1.01dd8c5682b62p-8,  -0x1.33e1e6748834ap-5};
inline const std::vector<double> logsumexp_two_drop_y = {0x1.f26fbc02e3b46p+1, 0x1.cc946ab188cc1p+1,
                                                         0x1.12e7402e7da62p+2};
inline const std::vector<double> logsumexp_two_drop_grad0 = {
    -0x1.871423dbf211ep-12, -0x1.52715221ab0efp-2,  -0x1.9272c7898faccp-4, -0x1.de8f072b7fac6p-6,
    0x1.0a76ecdd7e5fcp-7,   0x1.3cdb9d8ba30aap-9,   0x1.78c80fe309fb0p-11, 0x1.4611dc0d81d38p-1,
    0x1.b43474e63f884p-5,   0x1.0359809151b2bp-6,   0x1.3465ba5ba161ep-8,  0x1.6eb890cfd4919p-10,
    -0x1.9de6b44a69276p-10, -0x1.ec2d6ef5dd705p-12, -0x1.a9ef33cbbdba3p-2, -0x1.fa7c8291f1cdcp-4,
    0x1.1a03cd7aa8b19p-5,   0x1.4f59597bc022ap-7,   0x1.8ec5082aeb8aap-9,  0x1.da2f2dc4c5066p-11,
    0x1.cda9307983ecbp-3,   0x1.127c15d353c91p-4,   0x1.466510c64c8c8p-6,  0x1.841f3c2c14fecp-8};
inline const std::vector<double> std_two_keep_y = {0x1.74e0da2b4f2f0p+1, 0x1.1b04baed748dfp+1,
                                                   0x1.a46e61473d82fp+0};
inline const std::vector<double> std_two_keep_grad0 = {
    0x1.87e0547b2d6c0p-3, -0x1.21c065ffe9babp-3, -0x1.4fd64b2194c08p-4, -0x1.70af290d582f8p-6,
    0x1.21753266222d4p-8, -0x1.9b2961c5708c3p-5, -0x1.ad40b4ebd2aefp-4, 0x1.9b11fdcbb5decp-3,
    0x1.33e1e6748834ap-5, -0x1.01dd8c5682b62p-8, -0x1.7459498a28e25p-5, -0x1.643b70c4c0b6fp-4,
    0x1.ede6c7b8714c6p-4, 0x1.70c8a44b58009p-3,  -0x1.38d8162fbf261p-3, -0x1.7e05ab813f979p-4,
    0x1.1c288bd1d6e2ap-4, 0x1.e3e43e45e3cd0p-7,  -0x1.465ef880bbde7p-5, -0x1.82db804978582p-4,
    0x1.643b70c4c0b6fp-4, 0x1.7459498a28e27p-5,  0x1.01dd8c5682b62p-8,  -0x1.33e1e6748834ap-5};
inline const std::vector<double> logsumexp_two_keep_y = {0x1.f26fbc02e3b46p+1, 0x1.cc946ab188cc1p+1,
                                                         0x1.12e7402e7da62p+2};
inline const std::vector<double> logsumexp_two_keep_grad0 = {
    -0x1.871423dbf211ep-12, -0x1.52715221ab0efp-2,  -0x1.9272c7898faccp-4, -0x1.de8f072b7fac6p-6,
    0x1.0a76ecdd7e5fcp-7,   0x1.3cdb9d8ba30aap-9,   0x1.78c80fe309fb0p-11, 0x1.4611dc0d81d38p-1,
    0x1.b43474e63f884p-5,   0x1.0359809151b2bp-6,   0x1.3465ba5ba161ep-8,  0x1.6eb890cfd4919p-10,
    -0x1.9de6b44a69276p-10, -0x1.ec2d6ef5dd705p-12, -0x1.a9ef33cbbdba3p-2, -0x1.fa7c8291f1cdcp-4,
    0x1.1a03cd7aa8b19p-5,   0x1.4f59597bc022ap-7,   0x1.8ec5082aeb8aap-9,  0x1.da2f2dc4c5066p-11,
    0x1.cda9307983ecbp-3,   0x1.127c15d353c91p-4,   0x1.466510c64c8c8p-6,  0x1.841f3c2c14fecp-8};
inline const std::vector<double> std_population_y = {
    0x1.48f7cf8037d64p+1, 0x1.0145c48fb7a5cp+1, 0x1.0145c48fb7a5bp+1, 0x1.0145c48fb7a5cp+1,
    0x1.48f7cf8037d64p+1, 0x1.48f7cf8037d64p+1, 0x1.0145c48fb7a5bp+1, 0x1.0145c48fb7a5bp+1};
inline const std::vector<double> std_population_grad0 = {
    0x1.a20bd700c2c3dp-2,   0x1.029bbaa704f33p-2,  0x1.24157c825fe69p-3,  -0x1.d77df95730ae6p-8,
    -0x1.099f61c26afc7p-56, -0x1.3b855a49c37c5p-2, -0x1.645d140a7b326p-3, 0x1.46bdce05bdb12p-5,
    -0x1.a20bd700c2c3dp-2,  0x1.c74cfd15f448cp-5,  0x1.011e5e206d2f5p-5,  -0x1.0bce0edad79b5p-5,
    0x1.64501e022bb68p-4,   0x1.afb7fe41bcb41p-3,  -0x1.30393356240c4p-2, 0x1.458f3e5dbada2p-2,
    -0x1.5398c58c399f3p-57, 0x1.9b7704c97440ep-56, 0x1.732cb70cd9f31p-2,  -0x1.8d34cdcb32e8ap-2,
    -0x1.64501e022bb68p-4,  -0x1.afb7fe41bcb40p-3, -0x1.0bce0edad79b2p-4, 0x1.1e963db5e03a3p-4};
inline const std::vector<double> std_constant_y = {0x0.0p+0};
inline const std::vector<double> std_constant_grad0 = {0x0.0p+0, 0x0.0p+0, 0x0.0p+0};
inline const std::vector<double> logsumexp_large_y = {0x1.f42818f57f7d8p+9, -0x1.f3d7e70a80828p+9,
                                                      0x1.0000000000000p+1};
inline const std::vector<double> logsumexp_large_grad0 = {-0x1.764d4f5d5a328p-1,
                                                          -0x1.136561454bad5p-2,
                                                          0x1.04c986f672dafp-1,
                                                          0x1.7fc0c5f4fc19ep-3,
                                                          0x0.0p+0,
                                                          0x1.92e6e1cec76bcp-2};
inline const std::vector<double> logsumexp_infinite = {-inf, inf, nan};
inline const std::vector<double> max_of_dim_0_y = {nan, 0x1.4000000000000p+2, nan,
                                                   0x1.c000000000000p+2};
inline const std::vector<double> max_of_dim_0_grad0 = {0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       -0x1.0000000000000p+0,
                                                       0x1.64b9b873b1db0p-1,
                                                       0x1.92e6e1cec76bcp-2,
                                                       0x1.71694ad8ac870p-4,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0};
inline const std::vector<double> max_of_dim_0_at = {0x1.0000000000000p+0, 0x1.0000000000000p+0,
                                                    0x1.0000000000000p+0, 0x1.0000000000000p+0};
inline const std::vector<double> max_of_dim_1_y = {0x1.8000000000000p+1, nan,
                                                   -0x1.0000000000000p+0};
inline const std::vector<double> max_of_dim_1_grad0 = {
    -0x1.0000000000000p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
    0x1.64b9b873b1db0p-1,  0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
    0x1.92e6e1cec76bcp-2,  0x0.0p+0, 0x0.0p+0, 0x0.0p+0};
inline const std::vector<double> max_of_dim_1_at = {0x0.0p+0, 0x0.0p+0, 0x0.0p+0};
inline const std::vector<double> argmax = {0x1.4000000000000p+4};
inline const std::vector<double> argmax_nan = {0x1.0000000000000p+2};
inline const std::vector<double> min_of_dim_0_y = {nan, -0x1.0000000000000p+0, nan,
                                                   -0x1.0000000000000p+2};
inline const std::vector<double> min_of_dim_0_grad0 = {0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       -0x1.0000000000000p+0,
                                                       0x0.0p+0,
                                                       0x1.92e6e1cec76bcp-2,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x1.64b9b873b1db0p-1,
                                                       0x0.0p+0,
                                                       0x1.71694ad8ac870p-4};
inline const std::vector<double> min_of_dim_0_at = {0x1.0000000000000p+0, 0x1.0000000000000p+1,
                                                    0x1.0000000000000p+0, 0x1.0000000000000p+1};
inline const std::vector<double> min_of_dim_1_y = {-0x1.0000000000000p+1, nan,
                                                   -0x1.0000000000000p+2};
inline const std::vector<double> min_of_dim_1_grad0 = {0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       -0x1.0000000000000p+0,
                                                       0x1.64b9b873b1db0p-1,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x1.92e6e1cec76bcp-2,
                                                       0x0.0p+0};
inline const std::vector<double> min_of_dim_1_at = {0x1.8000000000000p+1, 0x0.0p+0,
                                                    0x1.0000000000000p+1};
inline const std::vector<double> argmin = {0x0.0p+0};
inline const std::vector<double> argmin_nan = {0x1.0000000000000p+2};
inline const std::vector<double> dot_y = {0x1.ad6bda277c596p+0};
inline const std::vector<double> dot_grad0 = {-0x1.0000000000000p-1, 0x1.325cdc39d8ed8p+0,
                                              0x1.c97370e763b5ep-1, 0x1.2e2d295b1590ep-1,
                                              0x1.25cdc39d8ed7ap-2};
inline const std::vector<double> dot_grad1 = {-0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,
                                              0x1.92e6e1cec76bcp-2, 0x1.71694ad8ac870p-4,
                                              -0x1.b46478c4e250cp-3};
inline const std::vector<double> matmul_vectors_y = {0x1.bd12882895a7bp+0};
inline const std::vector<double> matmul_vectors_grad0 = {
    -0x1.0000000000000p-1, 0x1.325cdc39d8ed8p+0, 0x1.c97370e763b5ep-1, 0x1.2e2d295b1590ep-1};
inline const std::vector<double> matmul_vectors_grad1 = {
    -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1, 0x1.92e6e1cec76bcp-2, 0x1.71694ad8ac870p-4};
inline const std::vector<double> matmul_row_y = {0x1.3c427b352a205p+0, -0x1.957c0c3b50dc5p-1};
inline const std::vector<double> matmul_row_grad0 = {0x1.5573b20c65286p+0, -0x1.edd4dbf034a8fp-2,
                                                     -0x1.31788011fdf3ap-2};
inline const std::vector<double> matmul_row_grad1 = {0x1.0000000000000p+0,  -0x1.64b9b873b1db0p-1,
                                                     -0x1.64b9b873b1db0p-1, 0x1.f1150fbde2c6bp-2,
                                                     -0x1.92e6e1cec76bcp-2, 0x1.18b6ae9461d73p-2};
inline const std::vector<double> matmul_column_y = {0x1.af722d1cbd268p+0, -0x1.85daefaed4b0ap-1};
inline const std::vector<double> matmul_column_grad0 = {
    0x1.0000000000000p-1,  -0x1.325cdc39d8ed8p+0, -0x1.c97370e763b5ep-1,
    -0x1.64b9b873b1db0p-2, 0x1.aae76418ca50dp-1,  0x1.3eb8338409d91p-1};
inline const std::vector<double> matmul_column_grad1 = {0x1.1016135ab839fp+0, -0x1.b0bcc25301dedp-1,
                                                        -0x1.81a5ab5b74316p-1};
inline const std::vector<double> matmul_rows_y = {0x1.3c427b352a205p+0, -0x1.957c0c3b50dc6p-1,
                                                  0x1.406c9c9f505a4p+0, -0x1.8d27c96704686p-1};
inline const std::vector<double> matmul_rows_grad0 = {0x1.550d78fdfb6a0p+0, 0x1.3f724d0a72fc0p-7,
                                                      -0x1.98320b13553fbp-4};
inline const std::vector<double> matmul_rows_grad1 = {
    0x1.0000000000000p+0,  -0x1.64b9b873b1db0p-1, -0x1.64b9b873b1db0p-1, 0x1.f1150fbde2c6bp-2,
    -0x1.92e6e1cec76bcp-2, 0x1.18b6ae9461d73p-2,  -0x1.92e6e1cec76bcp-2, -0x1.71694ad8ac870p-4,
    0x1.18b6ae9461d73p-2,  0x1.016135ab839f5p-4,  0x1.3d0cf6b3f884fp-3,  0x1.22b240fcb56f0p-5};
inline const std::vector<double> matmul_columns_y = {0x1.af722d1cbd268p+0, -0x1.85daefaed4b0ap-1,
                                                     0x1.f8e00c8f83b9cp+0, -0x1.e5fe61928f143p-2};
inline const std::vector<double> matmul_columns_grad0 = {
    0x1.0000000000000p-1, -0x1.325cdc39d8ed8p+0, -0x1.c97370e763b5ep-1, -0x1.64b9b873b1db0p-2,
    0x1.aae76418ca50dp-1, 0x1.3eb8338409d91p-1,  -0x1.92e6e1cec76bcp-3, 0x1.e22a1f7bc58d1p-2,
    0x1.67f9ec415ff85p-2, -0x1.71694ad8ac870p-5, 0x1.ba15db17d9e2dp-4,  0x1.4a0dc5eab0fb0p-4};
inline const std::vector<double> matmul_columns_grad1 = {
    0x1.878d622c1619dp-1, -0x1.018dc1506cb47p-1, -0x1.1d8fc69bb6ee4p-1};
inline const std::vector<double> masked_fill_y = {
    -0x1.0000000000000p+2, -0x1.e000000000000p+2, -0x1.e000000000000p+2, -0x1.e000000000000p+2,
    -0x1.b46478c4e250cp-1, -0x1.085f65bd86b94p+1, -0x1.a3a5ad49d4de4p+1, -0x1.e000000000000p+2,
    -0x1.e000000000000p+2, -0x1.e000000000000p+2, -0x1.0becb7b0d7270p-3, -0x1.580a260eb72f0p+0};
inline const std::vector<double> masked_fill_grad0 = {-0x1.0000000000000p+0,
                                                      0x0.0p+0,
                                                      0x0.0p+0,
                                                      0x0.0p+0,
                                                      -0x1.b46478c4e250cp-3,
                                                      -0x1.085f65bd86b94p-1,
                                                      -0x1.a3a5ad49d4de4p-1,
                                                      0x0.0p+0,
                                                      0x0.0p+0,
                                                      0x0.0p+0,
                                                      -0x1.0becb7b0d7270p-5,
                                                      -0x1.580a260eb72f0p-2};
inline const std::vector<double> masked_fill_row_y = {
    -0x1.0000000000000p+2, 0x1.64b9b873b1db0p+1,  0x1.92e6e1cec76bcp+0,  inf,
    -0x1.b46478c4e250cp-1, -0x1.085f65bd86b94p+1, -0x1.a3a5ad49d4de4p+1, inf,
    0x1.25cdc39d8ed7ap+1,  0x1.150ef82281654p+0,  -0x1.0becb7b0d7270p-3, inf};
inline const std::vector<double> masked_fill_row_grad0 = {
    -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  0x0.0p+0,
    -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1, -0x1.a3a5ad49d4de4p-1, 0x0.0p+0,
    0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.0becb7b0d7270p-5, 0x0.0p+0};
inline const std::vector<double> masked_select_y = {0x1.64b9b873b1db0p+1, 0x1.92e6e1cec76bcp+0,
                                                    0x1.71694ad8ac870p-2, 0x1.c1140b29dcfccp+1,
                                                    0x1.25cdc39d8ed7ap+1, 0x1.150ef82281654p+0};
inline const std::vector<double> masked_select_grad0 = {0x0.0p+0,
                                                        -0x1.0000000000000p+0,
                                                        0x1.64b9b873b1db0p-1,
                                                        0x1.92e6e1cec76bcp-2,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x1.71694ad8ac870p-4,
                                                        -0x1.b46478c4e250cp-3,
                                                        -0x1.085f65bd86b94p-1,
                                                        0x0.0p+0,
                                                        0x0.0p+0};
inline const std::vector<double> masked_select_wide_y = {
    0x1.64b9b873b1db0p-1, 0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,
    0x1.71694ad8ac870p-4, -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1};
inline const std::vector<double> masked_select_wide_grad0 = {
    -0x1.b46478c4e250cp-3, -0x1.842fb2dec35cap+0, 0x1.64b9b873b1db0p-1, 0x1.ef413484f28d8p-2};
inline const std::vector<double> mask_of_rows_y = {0x1.25cdc39d8ed7ap+1, 0x1.150ef82281654p+0,
                                                   -0x1.0becb7b0d7270p-3, -0x1.580a260eb72f0p+0};
inline const std::vector<double> mask_of_rows_grad0 = {0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       0x0.0p+0,
                                                       -0x1.0000000000000p+0,
                                                       0x1.64b9b873b1db0p-1,
                                                       0x1.92e6e1cec76bcp-2,
                                                       0x1.71694ad8ac870p-4};
inline const std::vector<double> mask_of_front_y = {
    0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,  -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1,
    -0x1.a3a5ad49d4de4p-1, 0x1.c1140b29dcfccp-1,  0x1.82281653b9f96p-1,  0x1.cdc39d8ed7a8cp-2,
    0x1.2e6e1cec76bd8p-3,  -0x1.3eab0144c1d70p-3, -0x1.d5e20fbafd358p-2, -0x1.86374f69ccbfdp-1};
inline const std::vector<double> mask_of_front_grad0 = {0x0.0p+0,
                                                        0x0.0p+0,
                                                        -0x1.0000000000000p+0,
                                                        0x1.64b9b873b1db0p-1,
                                                        0x1.92e6e1cec76bcp-2,
                                                        0x1.71694ad8ac870p-4,
                                                        -0x1.b46478c4e250cp-3,
                                                        -0x1.085f65bd86b94p-1,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        -0x1.a3a5ad49d4de4p-1,
                                                        0x1.c1140b29dcfccp-1,
                                                        0x1.25cdc39d8ed7ap-1,
                                                        0x1.150ef82281654p-2,
                                                        -0x1.0becb7b0d7270p-5,
                                                        -0x1.580a260eb72f0p-2,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0};
inline const std::vector<double> repeat_y = {
    -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  -0x1.0000000000000p+0,
    0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,
    0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,  -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1,
    0x1.71694ad8ac870p-4,  -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1, 0x1.71694ad8ac870p-4,
    -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1, -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,
    0x1.92e6e1cec76bcp-2,  -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,
    -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,
    -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1, 0x1.71694ad8ac870p-4,  -0x1.b46478c4e250cp-3,
    -0x1.085f65bd86b94p-1, 0x1.71694ad8ac870p-4,  -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1};
inline const std::vector<double> repeat_grad0 = {-0x1.d5e20fbafd358p+0, 0x1.612c6680616d6p-2,
                                                 0x1.0cf085f65bd84p-1,  0x1.c9b46478c4e26p+0,
                                                 -0x1.03ce4584b19b0p-5, 0x1.3075b97780200p-3};
inline const std::vector<double> flip_y = {
    0x1.cdc39d8ed7a8cp-2,  0x1.82281653b9f96p-1,  -0x1.e291a21ff7e19p-1, -0x1.474b5a93a9bc8p-1,
    -0x1.86374f69ccbfdp-1, -0x1.d5e20fbafd358p-2, -0x1.3eab0144c1d70p-3, 0x1.2e6e1cec76bd8p-3,
    0x1.95f24c9f55800p-6,  0x1.4febb3e291a20p-2,  0x1.433c217d96f62p-1,  0x1.de826909e51b2p-1,
    0x1.71694ad8ac870p-4,  0x1.92e6e1cec76bcp-2,  0x1.64b9b873b1db0p-1,  -0x1.0000000000000p+0,
    0x1.c1140b29dcfccp-1,  -0x1.a3a5ad49d4de4p-1, -0x1.085f65bd86b94p-1, -0x1.b46478c4e250cp-3,
    -0x1.580a260eb72f0p-2, -0x1.0becb7b0d7270p-5, 0x1.150ef82281654p-2,  0x1.25cdc39d8ed7ap-1};
inline const std::vector<double> flip_grad0 = {
    0x1.cdc39d8ed7a8cp-2,  0x1.82281653b9f96p-1,  -0x1.e291a21ff7e19p-1, -0x1.474b5a93a9bc8p-1,
    -0x1.86374f69ccbfdp-1, -0x1.d5e20fbafd358p-2, -0x1.3eab0144c1d70p-3, 0x1.2e6e1cec76bd8p-3,
    0x1.95f24c9f55800p-6,  0x1.4febb3e291a20p-2,  0x1.433c217d96f62p-1,  0x1.de826909e51b2p-1,
    0x1.71694ad8ac870p-4,  0x1.92e6e1cec76bcp-2,  0x1.64b9b873b1db0p-1,  -0x1.0000000000000p+0,
    0x1.c1140b29dcfccp-1,  -0x1.a3a5ad49d4de4p-1, -0x1.085f65bd86b94p-1, -0x1.b46478c4e250cp-3,
    -0x1.580a260eb72f0p-2, -0x1.0becb7b0d7270p-5, 0x1.150ef82281654p-2,  0x1.25cdc39d8ed7ap-1};
inline const std::vector<double> roll_y = {
    0x1.71694ad8ac870p-4,  -0x1.b46478c4e250cp-3, -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,
    0x1.92e6e1cec76bcp-2,  0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.085f65bd86b94p-1,
    -0x1.a3a5ad49d4de4p-1, 0x1.c1140b29dcfccp-1};
inline const std::vector<double> roll_grad0 = {
    0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4, -0x1.b46478c4e250cp-3, -0x1.0000000000000p+0,
    0x1.64b9b873b1db0p-1,  0x1.c1140b29dcfccp-1, 0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,
    -0x1.085f65bd86b94p-1, -0x1.a3a5ad49d4de4p-1};
inline const std::vector<double> roll_back_y = {
    -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1, -0x1.a3a5ad49d4de4p-1, 0x1.c1140b29dcfccp-1,
    0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.0becb7b0d7270p-5, -0x1.580a260eb72f0p-2,
    -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4};
inline const std::vector<double> roll_back_grad0 = {
    0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.0becb7b0d7270p-5, -0x1.580a260eb72f0p-2,
    -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,
    -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1, -0x1.a3a5ad49d4de4p-1, 0x1.c1140b29dcfccp-1};
inline const std::vector<double> roll_all_y = {
    0x1.c1140b29dcfccp-1,  0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.0becb7b0d7270p-5,
    -0x1.580a260eb72f0p-2, -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,
    0x1.71694ad8ac870p-4,  -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1, -0x1.a3a5ad49d4de4p-1};
inline const std::vector<double> roll_all_grad0 = {
    -0x1.085f65bd86b94p-1, -0x1.a3a5ad49d4de4p-1, 0x1.c1140b29dcfccp-1,  0x1.25cdc39d8ed7ap-1,
    0x1.150ef82281654p-2,  -0x1.0becb7b0d7270p-5, -0x1.580a260eb72f0p-2, -0x1.0000000000000p+0,
    0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,  -0x1.b46478c4e250cp-3};
inline const std::vector<double> tril_m2_y = {0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
                                              0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
                                              0x0.0p+0, 0x0.0p+0, 0x1.25cdc39d8ed7ap-1,
                                              0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
                                              0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
                                              0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
                                              0x0.0p+0, 0x0.0p+0, 0x1.de826909e51b2p-1,
                                              0x0.0p+0, 0x0.0p+0, 0x0.0p+0};
inline const std::vector<double> tril_m2_grad0 = {0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
                                                  0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
                                                  0x0.0p+0, 0x0.0p+0, 0x1.25cdc39d8ed7ap-1,
                                                  0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
                                                  0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
                                                  0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
                                                  0x0.0p+0, 0x0.0p+0, 0x1.de826909e51b2p-1,
                                                  0x0.0p+0, 0x0.0p+0, 0x0.0p+0};
inline const std::vector<double> triu_m2_y = {
    -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,
    -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1, -0x1.a3a5ad49d4de4p-1, 0x1.c1140b29dcfccp-1,
    0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.0becb7b0d7270p-5, -0x1.580a260eb72f0p-2,
    -0x1.474b5a93a9bc8p-1, -0x1.e291a21ff7e19p-1, 0x1.82281653b9f96p-1,  0x1.cdc39d8ed7a8cp-2,
    0x1.2e6e1cec76bd8p-3,  -0x1.3eab0144c1d70p-3, -0x1.d5e20fbafd358p-2, -0x1.86374f69ccbfdp-1,
    0x1.de826909e51b2p-1,  0x1.433c217d96f62p-1,  0x1.4febb3e291a20p-2,  0x1.95f24c9f55800p-6};
inline const std::vector<double> triu_m2_grad0 = {
    -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,
    -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1, -0x1.a3a5ad49d4de4p-1, 0x1.c1140b29dcfccp-1,
    0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.0becb7b0d7270p-5, -0x1.580a260eb72f0p-2,
    -0x1.474b5a93a9bc8p-1, -0x1.e291a21ff7e19p-1, 0x1.82281653b9f96p-1,  0x1.cdc39d8ed7a8cp-2,
    0x1.2e6e1cec76bd8p-3,  -0x1.3eab0144c1d70p-3, -0x1.d5e20fbafd358p-2, -0x1.86374f69ccbfdp-1,
    0x1.de826909e51b2p-1,  0x1.433c217d96f62p-1,  0x1.4febb3e291a20p-2,  0x1.95f24c9f55800p-6};
inline const std::vector<double> tril_0_y = {-0x1.0000000000000p+0,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             -0x1.b46478c4e250cp-3,
                                             -0x1.085f65bd86b94p-1,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             0x1.25cdc39d8ed7ap-1,
                                             0x1.150ef82281654p-2,
                                             -0x1.0becb7b0d7270p-5,
                                             0x0.0p+0,
                                             -0x1.474b5a93a9bc8p-1,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             0x1.2e6e1cec76bd8p-3,
                                             -0x1.3eab0144c1d70p-3,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             0x1.de826909e51b2p-1,
                                             0x1.433c217d96f62p-1,
                                             0x1.4febb3e291a20p-2,
                                             0x0.0p+0};
inline const std::vector<double> tril_0_grad0 = {-0x1.0000000000000p+0,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 -0x1.b46478c4e250cp-3,
                                                 -0x1.085f65bd86b94p-1,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 0x1.25cdc39d8ed7ap-1,
                                                 0x1.150ef82281654p-2,
                                                 -0x1.0becb7b0d7270p-5,
                                                 0x0.0p+0,
                                                 -0x1.474b5a93a9bc8p-1,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 0x1.2e6e1cec76bd8p-3,
                                                 -0x1.3eab0144c1d70p-3,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 0x1.de826909e51b2p-1,
                                                 0x1.433c217d96f62p-1,
                                                 0x1.4febb3e291a20p-2,
                                                 0x0.0p+0};
inline const std::vector<double> triu_0_y = {-0x1.0000000000000p+0,
                                             0x1.64b9b873b1db0p-1,
                                             0x1.92e6e1cec76bcp-2,
                                             0x1.71694ad8ac870p-4,
                                             0x0.0p+0,
                                             -0x1.085f65bd86b94p-1,
                                             -0x1.a3a5ad49d4de4p-1,
                                             0x1.c1140b29dcfccp-1,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             -0x1.0becb7b0d7270p-5,
                                             -0x1.580a260eb72f0p-2,
                                             -0x1.474b5a93a9bc8p-1,
                                             -0x1.e291a21ff7e19p-1,
                                             0x1.82281653b9f96p-1,
                                             0x1.cdc39d8ed7a8cp-2,
                                             0x0.0p+0,
                                             -0x1.3eab0144c1d70p-3,
                                             -0x1.d5e20fbafd358p-2,
                                             -0x1.86374f69ccbfdp-1,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             0x1.4febb3e291a20p-2,
                                             0x1.95f24c9f55800p-6};
inline const std::vector<double> triu_0_grad0 = {-0x1.0000000000000p+0,
                                                 0x1.64b9b873b1db0p-1,
                                                 0x1.92e6e1cec76bcp-2,
                                                 0x1.71694ad8ac870p-4,
                                                 0x0.0p+0,
                                                 -0x1.085f65bd86b94p-1,
                                                 -0x1.a3a5ad49d4de4p-1,
                                                 0x1.c1140b29dcfccp-1,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 -0x1.0becb7b0d7270p-5,
                                                 -0x1.580a260eb72f0p-2,
                                                 -0x1.474b5a93a9bc8p-1,
                                                 -0x1.e291a21ff7e19p-1,
                                                 0x1.82281653b9f96p-1,
                                                 0x1.cdc39d8ed7a8cp-2,
                                                 0x0.0p+0,
                                                 -0x1.3eab0144c1d70p-3,
                                                 -0x1.d5e20fbafd358p-2,
                                                 -0x1.86374f69ccbfdp-1,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 0x1.4febb3e291a20p-2,
                                                 0x1.95f24c9f55800p-6};
inline const std::vector<double> tril_1_y = {-0x1.0000000000000p+0,
                                             0x1.64b9b873b1db0p-1,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             -0x1.b46478c4e250cp-3,
                                             -0x1.085f65bd86b94p-1,
                                             -0x1.a3a5ad49d4de4p-1,
                                             0x0.0p+0,
                                             0x1.25cdc39d8ed7ap-1,
                                             0x1.150ef82281654p-2,
                                             -0x1.0becb7b0d7270p-5,
                                             -0x1.580a260eb72f0p-2,
                                             -0x1.474b5a93a9bc8p-1,
                                             -0x1.e291a21ff7e19p-1,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             0x1.2e6e1cec76bd8p-3,
                                             -0x1.3eab0144c1d70p-3,
                                             -0x1.d5e20fbafd358p-2,
                                             0x0.0p+0,
                                             0x1.de826909e51b2p-1,
                                             0x1.433c217d96f62p-1,
                                             0x1.4febb3e291a20p-2,
                                             0x1.95f24c9f55800p-6};
inline const std::vector<double> tril_1_grad0 = {-0x1.0000000000000p+0,
                                                 0x1.64b9b873b1db0p-1,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 -0x1.b46478c4e250cp-3,
                                                 -0x1.085f65bd86b94p-1,
                                                 -0x1.a3a5ad49d4de4p-1,
                                                 0x0.0p+0,
                                                 0x1.25cdc39d8ed7ap-1,
                                                 0x1.150ef82281654p-2,
                                                 -0x1.0becb7b0d7270p-5,
                                                 -0x1.580a260eb72f0p-2,
                                                 -0x1.474b5a93a9bc8p-1,
                                                 -0x1.e291a21ff7e19p-1,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 0x1.2e6e1cec76bd8p-3,
                                                 -0x1.3eab0144c1d70p-3,
                                                 -0x1.d5e20fbafd358p-2,
                                                 0x0.0p+0,
                                                 0x1.de826909e51b2p-1,
                                                 0x1.433c217d96f62p-1,
                                                 0x1.4febb3e291a20p-2,
                                                 0x1.95f24c9f55800p-6};
inline const std::vector<double> triu_1_y = {0x0.0p+0,
                                             0x1.64b9b873b1db0p-1,
                                             0x1.92e6e1cec76bcp-2,
                                             0x1.71694ad8ac870p-4,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             -0x1.a3a5ad49d4de4p-1,
                                             0x1.c1140b29dcfccp-1,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             -0x1.580a260eb72f0p-2,
                                             0x0.0p+0,
                                             -0x1.e291a21ff7e19p-1,
                                             0x1.82281653b9f96p-1,
                                             0x1.cdc39d8ed7a8cp-2,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             -0x1.d5e20fbafd358p-2,
                                             -0x1.86374f69ccbfdp-1,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             0x0.0p+0,
                                             0x1.95f24c9f55800p-6};
inline const std::vector<double> triu_1_grad0 = {0x0.0p+0,
                                                 0x1.64b9b873b1db0p-1,
                                                 0x1.92e6e1cec76bcp-2,
                                                 0x1.71694ad8ac870p-4,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 -0x1.a3a5ad49d4de4p-1,
                                                 0x1.c1140b29dcfccp-1,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 -0x1.580a260eb72f0p-2,
                                                 0x0.0p+0,
                                                 -0x1.e291a21ff7e19p-1,
                                                 0x1.82281653b9f96p-1,
                                                 0x1.cdc39d8ed7a8cp-2,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 -0x1.d5e20fbafd358p-2,
                                                 -0x1.86374f69ccbfdp-1,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 0x0.0p+0,
                                                 0x1.95f24c9f55800p-6};
inline const std::vector<double> tril_9_y = {
    -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,
    -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1, -0x1.a3a5ad49d4de4p-1, 0x1.c1140b29dcfccp-1,
    0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.0becb7b0d7270p-5, -0x1.580a260eb72f0p-2,
    -0x1.474b5a93a9bc8p-1, -0x1.e291a21ff7e19p-1, 0x1.82281653b9f96p-1,  0x1.cdc39d8ed7a8cp-2,
    0x1.2e6e1cec76bd8p-3,  -0x1.3eab0144c1d70p-3, -0x1.d5e20fbafd358p-2, -0x1.86374f69ccbfdp-1,
    0x1.de826909e51b2p-1,  0x1.433c217d96f62p-1,  0x1.4febb3e291a20p-2,  0x1.95f24c9f55800p-6};
inline const std::vector<double> tril_9_grad0 = {
    -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,
    -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1, -0x1.a3a5ad49d4de4p-1, 0x1.c1140b29dcfccp-1,
    0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.0becb7b0d7270p-5, -0x1.580a260eb72f0p-2,
    -0x1.474b5a93a9bc8p-1, -0x1.e291a21ff7e19p-1, 0x1.82281653b9f96p-1,  0x1.cdc39d8ed7a8cp-2,
    0x1.2e6e1cec76bd8p-3,  -0x1.3eab0144c1d70p-3, -0x1.d5e20fbafd358p-2, -0x1.86374f69ccbfdp-1,
    0x1.de826909e51b2p-1,  0x1.433c217d96f62p-1,  0x1.4febb3e291a20p-2,  0x1.95f24c9f55800p-6};
inline const std::vector<double> triu_9_y = {
    0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
    0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
    0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0};
inline const std::vector<double> triu_9_grad0 = {
    0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
    0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0,
    0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0};
inline const std::vector<double> pad_y = {
    -0x1.8000000000000p+0, -0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,  -0x1.8000000000000p+0,
    -0x1.8000000000000p+0, -0x1.8000000000000p+0, 0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,
    -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.b46478c4e250cp-3,
    -0x1.085f65bd86b94p-1, -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0,
    -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0,
    -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0,
    -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0,
    -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.a3a5ad49d4de4p-1,
    0x1.c1140b29dcfccp-1,  -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0,
    0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.8000000000000p+0, -0x1.8000000000000p+0,
    -0x1.8000000000000p+0, -0x1.0becb7b0d7270p-5, -0x1.580a260eb72f0p-2, -0x1.8000000000000p+0,
    -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0,
    -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0,
    -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0,
    -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0, -0x1.8000000000000p+0};
inline const std::vector<double> pad_grad0 = {
    0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  -0x1.a3a5ad49d4de4p-1, 0x1.c1140b29dcfccp-1,
    -0x1.580a260eb72f0p-2, -0x1.474b5a93a9bc8p-1, -0x1.9b0553faecf8ap-2, -0x1.68c8f189c4a16p-1,
    0x1.50ef822816540p-4,  -0x1.c4a15d1d2d6a4p-3, 0x1.21be8a877c114p-1,  0x1.0cf085f65bd88p-2};
inline const std::vector<double> pad_crop_y = {0x0.0p+0,
                                               0x0.0p+0,
                                               0x0.0p+0,
                                               0x0.0p+0,
                                               0x0.0p+0,
                                               0x1.64b9b873b1db0p-1,
                                               0x1.92e6e1cec76bcp-2,
                                               0x1.71694ad8ac870p-4,
                                               0x0.0p+0,
                                               0x0.0p+0};
inline const std::vector<double> pad_crop_grad0 = {0x0.0p+0,
                                                   -0x1.085f65bd86b94p-1,
                                                   -0x1.a3a5ad49d4de4p-1,
                                                   0x1.c1140b29dcfccp-1,
                                                   0x0.0p+0,
                                                   0x0.0p+0,
                                                   0x0.0p+0,
                                                   0x0.0p+0,
                                                   0x0.0p+0,
                                                   0x0.0p+0,
                                                   0x0.0p+0,
                                                   0x0.0p+0};
inline const std::vector<double> isnan = {
    0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x1.0000000000000p+0, 0x0.0p+0};
inline const std::vector<double> isinf = {
    0x0.0p+0, 0x0.0p+0, 0x1.0000000000000p+0, 0x1.0000000000000p+0, 0x0.0p+0, 0x0.0p+0};
inline const std::vector<double> isfinite = {
    0x1.0000000000000p+0, 0x1.0000000000000p+0, 0x0.0p+0, 0x0.0p+0, 0x0.0p+0, 0x1.0000000000000p+0};
inline const std::vector<double> isclose = {
    0x1.0000000000000p+0, 0x1.0000000000000p+0, 0x0.0p+0, 0x1.0000000000000p+0, 0x0.0p+0, 0x0.0p+0,
    0x1.0000000000000p+0, 0x1.0000000000000p+0};
inline const std::vector<double> isclose_nan = {
    0x1.0000000000000p+0, 0x1.0000000000000p+0, 0x0.0p+0, 0x1.0000000000000p+0, 0x0.0p+0,
    0x1.0000000000000p+0, 0x1.0000000000000p+0, 0x0.0p+0};
inline const std::vector<double> linspace_odd = {
    -0x1.0000000000000p+0, -0x1.0000000000000p-1, 0x0.0p+0,
    0x1.0000000000000p-1,  0x1.0000000000000p+0,  0x1.8000000000000p+0,
    0x1.0000000000000p+1};
inline const std::vector<float> linspace_odd_f32 = {
    -0x1.0000000000000p+0f, -0x1.0000000000000p-1f, 0x0.0p+0f,
    0x1.0000000000000p-1f,  0x1.0000000000000p+0f,  0x1.8000000000000p+0f,
    0x1.0000000000000p+1f};
inline const std::vector<double> linspace_even = {0x1.8000000000000p+1, 0x1.0000000000000p+0,
                                                  -0x1.0000000000000p+0, -0x1.8000000000000p+1};
inline const std::vector<float> linspace_even_f32 = {
    0x1.8000000000000p+1f, 0x1.0000000000000p+0f, -0x1.0000000000000p+0f, -0x1.8000000000000p+1f};
inline const std::vector<double> linspace_one = {0x1.4000000000000p+2};
inline const std::vector<float> linspace_one_f32 = {0x1.4000000000000p+2f};
inline const std::vector<double> linspace_whole = {0x0.0p+0, 0x1.0000000000000p+1,
                                                   0x1.4000000000000p+2, 0x1.c000000000000p+2,
                                                   0x1.4000000000000p+3};
inline const std::vector<double> randint_4 = {0x1.8000000000000p+2, 0x1.0000000000000p+3,
                                              0x1.c000000000000p+2, 0x1.c000000000000p+2, 0x0.0p+0};
inline const std::vector<double> randint_28 = {0x1.e1ec788000000p+27, 0x1.62cc818000000p+25,
                                               0x1.be63190000000p+24, 0x1.260b018000000p+26,
                                               0x1.fc69528000000p+27};
inline const std::vector<double> randint_29 = {0x1.332ad98000000p+26, 0x1.4cd8d48000000p+27,
                                               0x1.eeb3720000000p+27, 0x1.fcbf684000000p+26,
                                               0x1.dff68f0000000p+24};
inline const std::vector<double> randint_51 = {0x1.b584a6df4ba00p+43, 0x1.cfa77403198e0p+48,
                                               0x1.97f06e601c340p+47, 0x1.22515a9985da0p+48,
                                               0x1.e6cb3f0eb1a10p+49};
inline const std::vector<float> randn_like = {0x1.b023760000000p-2f,  0x1.0717320000000p-2f,
                                              -0x1.3186a00000000p+1f, -0x1.026e340000000p-1f,
                                              0x1.05e36a0000000p+0f,  0x1.0d66520000000p+0f};
inline const std::vector<float> rand_like = {0x1.c5f2600000000p-2f, 0x1.65cfd80000000p-3f,
                                             0x1.83267c0000000p-1f, 0x1.84a81c0000000p-2f,
                                             0x1.43dfc00000000p-3f, 0x1.84b2ac0000000p-2f};

}  // namespace weft::goldens
