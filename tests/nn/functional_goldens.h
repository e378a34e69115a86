// Written by write_functional_goldens.py with PyTorch 2.11.0. Do not edit.
#pragma once

#include <vector>

namespace weft::goldens {

inline const std::vector<double> leaky_relu_y = {
    -0x1.999999999999ap-1, 0x1.64b9b873b1db0p+1,  0x1.92e6e1cec76bcp+0,  0x1.71694ad8ac870p-2,
    -0x1.5d1d2d6a4ea70p-3, -0x1.a6ff092f3df54p-2, -0x1.4fb7bdd4aa4b7p-1, 0x1.c1140b29dcfccp+1,
    0x1.25cdc39d8ed7ap+1,  0x1.150ef82281654p+0,  -0x1.acadf2b48b71ap-6, -0x1.133b51a55f58dp-2,
    -0x1.05d5e20fbafd3p-1, -0x1.820e1b4cc64e1p-1, 0x1.82281653b9f96p+1,  0x1.cdc39d8ed7a8cp+0,
    0x1.2e6e1cec76bd8p-1,  -0x1.fdde686e02f1ap-4, -0x1.77e80c95975e0p-2, -0x1.382c3f87d6ffep-1,
    0x1.de826909e51b2p+1};
inline const std::vector<double> leaky_relu_grad0 = {
    -0x1.999999999999ap-3, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,
    -0x1.5d1d2d6a4ea70p-5, -0x1.a6ff092f3df54p-4, -0x1.4fb7bdd4aa4b7p-3, 0x1.c1140b29dcfccp-1,
    0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.acadf2b48b71ap-8, -0x1.133b51a55f58dp-4,
    -0x1.05d5e20fbafd3p-3, -0x1.820e1b4cc64e1p-3, 0x1.82281653b9f96p-1,  0x1.cdc39d8ed7a8cp-2,
    0x1.2e6e1cec76bd8p-3,  -0x1.fdde686e02f1ap-6, -0x1.77e80c95975e0p-4, -0x1.382c3f87d6ffep-3,
    0x1.de826909e51b2p-1};
inline const std::vector<double> gelu_y = {
    -0x1.09ad7954b0000p-13, 0x1.63c6c0010daa3p+1,   0x1.7ba110ecead7ap+0,   0x1.d97afb336b611p-3,
    -0x1.57e79dc9d3f3ep-3,  -0x1.48f4e12e03ac5p-5,  -0x1.c0775bcc45641p-10, 0x1.c0fa21e880948p+1,
    0x1.229d2f8a3d9eap+1,   0x1.dcc795e2b012fp-1,   -0x1.e0136917d7743p-5,  -0x1.ec9b7e73fe9c0p-4,
    -0x1.ba53987aa2da4p-7,  -0x1.4295f4c0ac4c6p-12, 0x1.81a9d6dda72abp+1,   0x1.bd4f438b8279bp+0,
    0x1.b517ae614ac04p-2,   -0x1.542227761fa04p-3,  -0x1.f3768fbbb2d9bp-5,  -0x1.cb65633fb81d5p-9,
    0x1.de7710b1dd103p+1};
inline const std::vector<double> gelu_grad0 = {
    0x1.080eb696c04b5p-11, 0x1.6bf04361825cap-1,  0x1.c4f2310e1f7d9p-2,  0x1.1e8e6dc52b39cp-4,
    0x1.1372be111d8cbp-7,  0x1.4abb5942ef6d9p-5,  0x1.298ed7747ba8ep-8,  0x1.c24fe237ffd79p-1,
    0x1.35ec3971eefa6p-1,  0x1.30fd48ae4d436p-2,  -0x1.a89ea77bb3ce5p-7, 0x1.5fd22b6f96469p-5,
    0x1.5f21eebe71d4cp-6,  0x1.1c67d1f4ce637p-10, 0x1.86923dd65d74cp-1,  0x1.fe9fa59928aecp-2,
    0x1.16679ec89d3f8p-3,  -0x1.3d73963017220p-7, 0x1.81d7af5fcbcd9p-5,  0x1.069d753404fa6p-7,
    0x1.df1fbad4b09a7p-1};
inline const std::vector<double> gelu_tanh_y = {
    -0x1.26a20335dc000p-14, 0x1.63d6101a928b1p+1,   0x1.7b944e46bd33bp+0,   0x1.d9785065abf29p-3,
    -0x1.581c960d38e88p-3,  -0x1.47b08805656b5p-5,  -0x1.737317f1908c8p-10, 0x1.c10082cd1ff40p+1,
    0x1.22a82c7a75a98p+1,   0x1.dcafe7e8ebb5ep-1,   -0x1.e0139c3bdb7cfp-5,  -0x1.ed9026dbf4219p-4,
    -0x1.ab5e9dbab493dp-7,  -0x1.a5509f0ee4165p-13, 0x1.81b7258d0861bp+1,   0x1.bd4b2089bd3bcp+0,
    0x1.b50f815e4b1c0p-2,   -0x1.5435bd92f7304p-3,  -0x1.f3c893dc2c042p-5,  -0x1.97c348070c2e4p-9,
    0x1.de7adab71efe2p+1};
inline const std::vector<double> gelu_tanh_grad0 = {
    0x1.5f66f2bf92b0ap-12, 0x1.6be43c7de5142p-1,  0x1.c5194292aac00p-2,  0x1.1e89575e5c721p-4,
    0x1.111a026294a8ep-7,  0x1.4e6109c01f77ap-5,  0x1.113d091141621p-8,  0x1.c22262f78c86dp-1,
    0x1.361e6f036119cp-1,  0x1.30e66f9d811f1p-2,  -0x1.a89f72d436fd9p-7, 0x1.5fba945d417d1p-5,
    0x1.61a673aa5af39p-6,  0x1.b21cc189779bbp-11, 0x1.866d4fc01b8c8p-1,  0x1.fef712815139cp-2,
    0x1.16596350ef10ap-3,  -0x1.3e7f86b121499p-7, 0x1.84c07f25a47d5p-5,  0x1.f98e76240109fp-8,
    0x1.defc6ce5377cbp-1};
inline const std::vector<double> log_sigmoid_y = {
    -0x1.01295e50b53b6p+2, -0x1.e9c742f5d81c3p-5, -0x1.81ba81f99269bp-3, -0x1.0ed2a97fc0533p-1,
    -0x1.351e8ac5cc3abp+0, -0x1.17a6506e9249fp+1, -0x1.a861d6d152bc7p+1, -0x1.e366d0d1d2a9dp-6,
    -0x1.8918b3600175bp-4, -0x1.2acc679388748p-2, -0x1.8579fb664136ap-1, -0x1.935f315eb23bdp+0,
    -0x1.50da6dd9028ffp+1, -0x1.e57c60901bbedp+1, -0x1.8788b6ed88811p-5, -0x1.3834b07b1fef8p-3,
    -0x1.c360d0b23773cp-2, -0x1.0d5052da01c3ap+0, -0x1.fbc6bd88d4d0bp+0, -0x1.8c25abe9d5c71p+1,
    -0x1.81433f4525c0bp-6};
inline const std::vector<double> log_sigmoid_grad0 = {
    -0x1.f6ca82f0de1eap-1, 0x1.4b3e06415b1e9p-5,  0x1.14aa4743e663ep-4,  0x1.2f7dd3a1d3bcdp-5,
    -0x1.31ef71f0d1661p-3, -0x1.d54255f3a7c21p-2, -0x1.946837b7e6609p-1, 0x1.a1ccf95be4cb8p-6,
    0x1.ae2c5ad2e99c8p-5,  0x1.187866f4f637cp-4,  -0x1.1d6cce8ee837ap-6, -0x1.10de5e8c5f3fap-2,
    -0x1.2fbe248e1d660p-1, -0x1.d7b2316f893f6p-1, 0x1.205a9aee4c740p-5,  0x1.05294ac566e6ep-4,
    0x1.af3d1bd7a4325p-5,  -0x1.9ec155002fecfp-4, -0x1.953bc0dbe5400p-2, -0x1.748c184a62685p-1,
    0x1.63dc9e09fcec1p-6};
inline const std::vector<double> silu_y = {
    -0x1.26afa1e43c2c3p-4, 0x1.5005d80f9c291p+1,  0x1.4dbc4ffdcdd2cp+0,  0x1.b354c20f85514p-3,
    -0x1.04ea0da821d56p-2, -0x1.dbe3ac3b2d83ap-3, -0x1.e7aeb23dcfb60p-4, 0x1.b405a35efdd66p+1,
    0x1.0aeafdf0603ddp+1,  0x1.9de1bcca87aeap-1,  -0x1.f4d941a58c2cdp-5, -0x1.1caf1e095fbd8p-2,
    -0x1.78d36058c5686p-3, -0x1.5bee160dd444ep-4, 0x1.70226ca4d5323p+1,  0x1.8c794add7def1p+0,
    0x1.853dabed1b61ep-2,  -0x1.bd295b12a7822p-3, -0x1.02993b7c5fd60p-2, -0x1.1ab371f6a5789p-3,
    0x1.d36384199533cp+1};
inline const std::vector<double> silu_grad0 = {
    0x1.af6db3d3a28d4p-5,  0x1.865ef70f2a041p-1,  0x1.a7e7908a6da3bp-2,  0x1.f3d7ab4e2ae75p-5,
    -0x1.a40a6ccee509ap-6, 0x1.8c6fbec72d46ap-5,  0x1.074770a3f50c2p-4,  0x1.e07f48241c82bp-1,
    0x1.42fb9ca45dd0bp-1,  0x1.079f103d83905p-2,  -0x1.d1f295c7d5a40p-7, 0x1.2c23ae108d47ap-8,
    0x1.02b0618d1ae6ep-4,  0x1.d31e2e480602ap-5,  0x1.a3f78d48b5d52p-1,  0x1.f1973200e3bcap-2,
    0x1.d733a3bc8ca7ap-4,  -0x1.08db16c16ee00p-5, 0x1.2d7f17824d713p-5,  0x1.0e0dbd945fd35p-4,
    0x1.fbfee0bd7faebp-1};
inline const std::vector<double> elu_y = {
    -0x1.f69f5523ef618p-2, 0x1.64b9b873b1db0p+1,  0x1.92e6e1cec76bcp+0,  0x1.71694ad8ac870p-2,
    -0x1.25ac3227cbfb1p-2, -0x1.bf18822317d11p-2, -0x1.ecb48dc1a8abep-2, 0x1.c1140b29dcfccp+1,
    0x1.25cdc39d8ed7ap+1,  0x1.150ef82281654p+0,  -0x1.f6474cb73fa99p-5, -0x1.7a751ecfd30a3p-2,
    -0x1.d84cf06373672p-2, -0x1.f432bac523760p-2, 0x1.82281653b9f96p+1,  0x1.cdc39d8ed7a8cp+0,
    0x1.2e6e1cec76bd8p-1,  -0x1.da76e8eafbe68p-3, -0x1.ae51315ad62b0p-2, -0x1.e7b7a4e7cb3f5p-2,
    0x1.de826909e51b2p+1};
inline const std::vector<double> elu_grad0 = {
    -0x1.2c155b8213cf4p-7, 0x1.64b9b873b1db0p-1,  0x1.92e6e1cec76bcp-2,  0x1.71694ad8ac870p-4,
    -0x1.742c6a4fd2b69p-5, -0x1.0c1ba5fb988b3p-5, -0x1.fa0f8ac37dfeep-7, 0x1.c1140b29dcfccp-1,
    0x1.25cdc39d8ed7ap-1,  0x1.150ef82281654p-2,  -0x1.d623d57cf563bp-7, -0x1.66efd3bfa5c0ap-5,
    -0x1.960b439320af1p-6, -0x1.63f331668aad5p-7, 0x1.82281653b9f96p-1,  0x1.cdc39d8ed7a8cp-2,
    0x1.2e6e1cec76bd8p-3,  -0x1.5607affbd3de4p-5, -0x1.2bdac3d7d6b58p-5, -0x1.281bced67e34dp-6,
    0x1.de826909e51b2p-1};
inline const std::vector<double> softplus_y = {
    0x1.b0a8473464413p-10, 0x1.64b9b873b1db0p+1, 0x1.a24a05efbae44p+0, 0x1.554a8fbf65d95p-1,
    0x1.4f661bb4f5857p-3,  0x1.e22ef74f3ab25p-6, 0x1.3e763c8c3b8aap-8, 0x1.c1140b29dcfccp+1,
    0x1.25cdc39d8ed7ap+1,  0x1.33c7b74fe5ddfp+0, 0x1.997cf03f5738dp-2, 0x1.5578ee8399054p-4,
    0x1.d2a458d594365p-7,  0x1.314442d44bafap-9, 0x1.82281653b9f96p+1, 0x1.d8cde90a016cfp+0,
    0x1.a4434e54c2dd7p-1,  0x1.c4afe2a423c59p-3, 0x1.515eca3260c94p-5, 0x1.c0f23e4857e30p-8,
    0x1.de826909e51b2p+1};
inline const std::vector<double> softplus_grad0 = {
    -0x1.4417772fa8010p-9, 0x1.64b9b873b1db0p-1,  0x1.702a6f774c9fbp-2,  0x1.d2fdcf587ff6ep-5,
    -0x1.7c32697f41b41p-5, -0x1.6d578102d54a8p-6, -0x1.861acedbcc523p-8, 0x1.c1140b29dcfccp-1,
    0x1.25cdc39d8ed7ap-1,  0x1.ced5363aa3486p-3,  -0x1.e371077c79db9p-7, -0x1.43878bbecbfcep-5,
    -0x1.bab432fe395ccp-7, -0x1.aed35fa153625p-9, 0x1.82281653b9f96p-1,  0x1.b0d6bdc464f64p-2,
    0x1.ac48735221c50p-4,  -0x1.67b4e1ab73c7bp-5, -0x1.c25f9cd13398dp-6, -0x1.fe9cc90ae7632p-8,
    0x1.de826909e51b2p-1};
inline const std::vector<double> softmax_y = {
    0x1.099a32290c4a1p-8, 0x1.46308a4a7bcf7p-2,  0x1.15d5ae5201330p-3,  0x1.4503c16a2976fp-2,
    0x1.123aef8385fa2p-7, 0x1.d327dbe726c67p-9,  0x1.113e1042b1351p-7,  0x1.4f9290eeea2d6p-1,
    0x1.1dd3a058aa315p-2, 0x1.4e5d211c3f508p-1,  0x1.1a1e568a4e74bp-6,  0x1.e097f1c2ed7d5p-8,
    0x1.191a3129e2d2fp-6, 0x1.da5bcbbafb103p-12, 0x1.260c6c7fbd98dp-1,  0x1.15d5ae5201330p-3,
    0x1.15d5ae5201333p-3, 0x1.7e87d5f0617c3p-7,  0x1.d327dbe726c67p-9,  0x1.d327dbe726c6ep-9,
    0x1.d419394c9321ap-1, 0x1.1dd3a058aa315p-2,  0x1.1dd3a058aa314p-2,  0x1.8988c035f7d91p-6,
    0x1.e097f1c2ed7d5p-8, 0x1.e097f1c2ed7dbp-8,  0x1.4ad8eb315f1f0p-11, 0x1.260c6c7fbd98dp-1,
    0x1.260c6c7fbd98dp-1, 0x1.94dab1f2f41b6p-5};
inline const std::vector<double> softmax_grad0 = {
    -0x1.3a54b060e3537p-8, -0x1.fbd76f24103a0p-6,  -0x1.14a899725faa0p-5,  -0x1.e50e531e32435p-6,
    -0x1.142e9851b5e37p-7, -0x1.0ea8bce801b56p-8,  -0x1.1216085bfec83p-7,  0x1.be057011af583p-5,
    -0x1.39905660e2b85p-6, 0x1.d1f94b96fb872p-5,   -0x1.d27a4ca740396p-7,  -0x1.d63399f74f05bp-8,
    -0x1.ce88279319237p-7, -0x1.9bdfd05a6d0b4p-11, 0x1.070627bf5d8f1p-4,   -0x1.14a899725faa0p-5,
    -0x1.14a899725faa0p-5, -0x1.8592c7e60a80ep-7,  -0x1.0ea8bce801b56p-8,  -0x1.0ea8bce801b5ap-8,
    0x1.0cca7d0d0c5b6p-4,  -0x1.39905660e2b85p-6,  -0x1.39905660e2b88p-6,  -0x1.49cb8fb7fcee0p-6,
    -0x1.d63399f74f05bp-8, -0x1.d63399f74f061p-8,  -0x1.2122964836318p-10, 0x1.070627bf5d8f1p-4,
    0x1.070627bf5d8efp-4,  -0x1.0a416b9255eb8p-5};
inline const std::vector<double> log_softmax_y = {
    -0x1.6088e22e145fdp+2, -0x1.24dcb91c73546p+0, -0x1.ff623bf6a0488p+0, -0x1.25c93602265d6p+0,
    -0x1.32209999920cbp+2, -0x1.68c1fa501d49bp+2, -0x1.325bb8d2fecefp+2, -0x1.b0a04ec074436p-2,
    -0x1.46ad968a4a050p+0, -0x1.b45242574067ap-2, -0x1.03f3703e7c7bdp+2, -0x1.3a94d0f507b8dp+2,
    -0x1.042e8f77e93e1p+2, -0x1.ecdcdb90f1b35p+2, -0x1.1bf1e23be782fp-1, -0x1.ff623bf6a0488p+0,
    -0x1.ff623bf6a0484p+0, -0x1.1cd3567b67b65p+2, -0x1.68c1fa501d49bp+2, -0x1.68c1fa501d49ap+2,
    -0x1.6f3073773b785p-4, -0x1.46ad968a4a050p+0, -0x1.46ad968a4a050p+0, -0x1.dd4c5a40a44aep+1,
    -0x1.3a94d0f507b8dp+2, -0x1.3a94d0f507b8cp+2, -0x1.d78f9872c75d0p+2, -0x1.1bf1e23be782fp-1,
    -0x1.1bf1e23be7830p-1, -0x1.80f2078a79292p+1};
inline const std::vector<double> log_softmax_grad0 = {
    -0x1.fba57873499abp-1, 0x1.25d8f55393a58p-1,  0x1.1a2876f845404p-2,  0x1.8322c42e09c13p-1,
    -0x1.bb000e6de78ecp-3, -0x1.09f57048243ffp-1, -0x1.9ab07fa22894cp-1, 0x1.3fb477303246ep-1,
    0x1.532c676ff4109p-2,  0x1.a40822dc8e073p+0,  -0x1.424eaa2e32640p-5, -0x1.5e910866ba013p-2,
    -0x1.34dd11d1b3a02p-1, -0x1.e2a87e4568e25p-1, 0x1.05270a8ec9306p-2,  0x1.2d17f729e2a30p-2,
    0x1.926270b22e1a1p-3,  -0x1.41a13df634c46p-3, -0x1.da1aad63f0215p-2, -0x1.858f3eca42479p-1,
    0x1.a484de01ee47cp-1,  0x1.3be2a3e9a022ep-2,  0x1.b6c01567b334ep-2,  0x1.653188487944fp-6,
    -0x1.25dcd0b5c12d0p-2, -0x1.2883303af564ep-1, -0x1.c52d836b8093ep-1, 0x1.2df9c60c5d114p-3,
    0x1.6e19c824d28b7p-1,  0x1.979da2936ecc6p-3};
inline const std::vector<double> nll_none_y = {-0x1.92e6e1cec76bcp-2, 0x0.0p+0,
                                               0x1.a3a5ad49d4de4p-1, 0x1.0becb7b0d7270p-5};
inline const std::vector<double> nll_none_grad0 = {
    0x0.0p+0, 0x0.0p+0, 0x1.0000000000000p+0,  0x0.0p+0,
    0x0.0p+0, 0x0.0p+0, -0x1.92e6e1cec76bcp-2, 0x0.0p+0,
    0x0.0p+0, 0x0.0p+0, -0x1.71694ad8ac870p-4, 0x0.0p+0};
inline const std::vector<double> nll_image_none_y = {0x1.0000000000000p+0,
                                                     -0x1.c1140b29dcfccp-1,
                                                     0x1.085f65bd86b94p-1,
                                                     0x1.d5e20fbafd358p-2,
                                                     0x0.0p+0,
                                                     0x1.3eab0144c1d70p-3};
inline const std::vector<double> nll_image_none_grad0 = {0x1.0000000000000p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         -0x1.92e6e1cec76bcp-2,
                                                         0x0.0p+0,
                                                         -0x1.64b9b873b1db0p-1,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x1.085f65bd86b94p-1,
                                                         -0x1.71694ad8ac870p-4,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0};
inline const std::vector<double> bce_none_y = {
    0x1.400000008da43p+4, 0x1.0e75fd2d14bdbp+2, 0x1.317ec3735f5fep+2, 0x1.cb24e578bd62fp+0,
    0x1.d81b14999620cp-1, 0x1.5546a8092537dp+2, 0x1.adf0d8742156bp+3, 0x1.13f1ee3287660p+1,
    0x1.3905c39354617p+2, 0x1.f9cf8f7195af9p+1, 0x1.c299c5c1ce1a0p-2, 0x1.2120940fc0796p+1};
inline const std::vector<double> bce_none_grad0 = {
    0x1.ffffffee4b79bp-1, 0x1.b0bc6f4f107bap-3, 0x1.e871f51d6ee6fp-3,  0x1.1bdcca2ccc891p-4,
    0x1.5bae62f77ec1ep-5, 0x1.1100771655662p-2, 0x1.57f3de252599cp-1,  0x1.b98310b9777b3p-4,
    0x1.f4d2a18d6a731p-3, 0x1.91ba8f32f5d85p-3, -0x1.4b89c62dcfc32p-7, 0x1.ccb286fa7c28fp-4};
inline const std::vector<double> bce_none_grad1 = {
    -0x1.4000000000000p+4, -0x1.36ad29d6adbc3p+3, -0x1.8c503460f6a63p+1, -0x1.4d2a712bf21dfp-3,
    -0x1.d0effdc0418c3p-1, -0x1.55461ebc7534fp+2, -0x1.adf0d84b534d7p+3, -0x1.ec5c92749f21ap+3,
    -0x1.a57cd0f3eafc3p+2, -0x1.76cfbf517061bp+0, -0x1.5e818a91974ffp-6, -0x1.20f90c2d16f22p+1};
inline const std::vector<double> bce_weight_none_y = {
    0x1.400000008da43p+4, 0x1.0e760193eb3efp+2, 0x1.31823288b6fb8p+2, 0x1.cefb3171ba0bfp+0,
    0x1.d81b14999620cp-1, 0x1.cc29e59b9b85ep+3, 0x1.0142eb8fcce08p+5, 0x1.13f1ee63f6d5dp+1,
    0x1.3905c39354617p+2, 0x1.fa12971e1f192p+1, 0x1.f4a9f891f7c48p-2, 0x1.2e1bfc1f8c67fp+2};
inline const std::vector<double> bce_weight_none_grad0 = {
    0x1.ffffffee4b79bp-1, 0x1.b0bc0d2bd6cccp-3, 0x1.e846baf831963p-3,  0x1.16ba13fbc9adap-4,
    0x1.5bae62f77ec1ep-5, 0x1.701cf569a1cf8p-1, 0x1.9b9e4352c7dfdp+0,  0x1.b9830b4df25d0p-4,
    0x1.f4d2a18d6a731p-3, 0x1.90990790840eap-3, -0x1.2b674cdcb8f4cp-7, 0x1.e2129afa3443ap-3};
inline const std::vector<double> bce_weight_none_grad1 = {
    -0x1.4000000000000p+4, -0x1.36ad27a3427b8p+3, -0x1.8c495636476efp+1, -0x1.2e7811640cd62p-3,
    -0x1.d0effdc0418c3p-1, -0x1.cc29a0f543849p+3, -0x1.0142eb85995e3p+5, -0x1.ec5c92684345ap+3,
    -0x1.a57cd0f3eafc3p+2, -0x1.7649aff85d8e8p+0, -0x1.1fe12de50c7dcp-4, -0x1.2e08382e37a46p+2};
inline const std::vector<double> l1_none_y = {0x1.0000000000000p-1, 0x1.64b9b873b1db0p-2,
                                              0x1.92e6e1cec76bcp-3, 0x1.71694ad8ac870p-5,
                                              0x1.b46478c4e250cp-4, 0x1.085f65bd86b94p-2};
inline const std::vector<double> l1_none_grad0 = {0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1,
                                                  0x1.92e6e1cec76bcp-2, 0x1.71694ad8ac870p-4,
                                                  0x1.b46478c4e250cp-3, 0x1.085f65bd86b94p-1};
inline const std::vector<double> l1_none_grad1 = {-0x1.0000000000000p+0, -0x1.64b9b873b1db0p-1,
                                                  -0x1.92e6e1cec76bcp-2, -0x1.71694ad8ac870p-4,
                                                  -0x1.b46478c4e250cp-3, -0x1.085f65bd86b94p-1};
inline const std::vector<double> smooth_l1_none_y = {0x1.999999999999ap-1, 0x1.fca6a41a96e93p-2,
                                                     0x1.8c503460f6a62p-3, 0x1.4d2a712bf21dep-7,
                                                     0x1.d0effdc0418c2p-5, 0x1.43f1feae40a5bp-2};
inline const std::vector<double> smooth_l1_none_grad0 = {
    0x1.0000000000000p+0, 0x1.64b9b873b1db0p-1, 0x1.8c503460f6a62p-2,
    0x1.4d2a712bf21dep-6, 0x1.d0effdc0418c2p-4, 0x1.085f65bd86b94p-1};
inline const std::vector<double> smooth_l1_none_grad1 = {
    -0x1.0000000000000p+0, -0x1.64b9b873b1db0p-1, -0x1.8c503460f6a62p-2,
    -0x1.4d2a712bf21dep-6, -0x1.d0effdc0418c2p-4, -0x1.085f65bd86b94p-1};
inline const std::vector<double> nll_mean_y = {0x1.39415fd1fe23cp-3};
inline const std::vector<double> nll_mean_grad0 = {
    0x0.0p+0, 0x0.0p+0, -0x1.5555555555555p-2, 0x0.0p+0,
    0x0.0p+0, 0x0.0p+0, -0x1.5555555555555p-2, 0x0.0p+0,
    0x0.0p+0, 0x0.0p+0, -0x1.5555555555555p-2, 0x0.0p+0};
inline const std::vector<double> nll_image_mean_y = {0x1.00c2dab423853p-2};
inline const std::vector<double> nll_image_mean_grad0 = {-0x1.999999999999ap-3,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         -0x1.999999999999ap-3,
                                                         0x0.0p+0,
                                                         -0x1.999999999999ap-3,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         -0x1.999999999999ap-3,
                                                         -0x1.999999999999ap-3,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0,
                                                         0x0.0p+0};
inline const std::vector<double> bce_mean_y = {0x1.564b828691ba4p+2};
inline const std::vector<double> bce_mean_grad0 = {
    -0x1.5555554987a67p-4, 0x1.9e106f5c867c5p-6,  0x1.9dcdf356d6f83p-5,  0x1.06496dea18e2fp-4,
    -0x1.0ff22c775cfe6p-6, -0x1.607979d0d66d8p-5, -0x1.17c3c728a2ddbp-4, 0x1.4f95157c7b050p-7,
    0x1.22ebd5f571b69p-5,  0x1.eeed0750e97c9p-5,  0x1.a66054b86c909p-6,  -0x1.c912ca627d325p-6};
inline const std::vector<double> bce_mean_grad1 = {
    0x1.aaaaaaaaaaaabp+0,  -0x1.29456f0b14368p+0, -0x1.4fc066d6fb847p-1, -0x1.33d7be5f3a708p-3,
    0x1.6ba90f4ebc98bp-2,  0x1.b89efee68b34cp-1,  0x1.5db4bb12dc0e8p+0,  -0x1.763b5ea2e2d2bp+0,
    -0x1.e9ac460698bcbp-1, -0x1.cdc39d8ed7a8cp-2, 0x1.be8a877c11410p-5,  0x1.1eb31fb6edfc8p-1};
inline const std::vector<double> bce_weight_mean_y = {0x1.f7e1ae656d9d5p+2};
inline const std::vector<double> bce_weight_mean_grad0 = {
    -0x1.5555554987a67p-4, 0x1.9e10117553c85p-6,  0x1.9da9543df445fp-5,  0x1.018aa5381f63bp-4,
    -0x1.0ff22c775cfe6p-6, -0x1.db45fb80af2c9p-4, -0x1.4ecd7f4c4f339p-3, 0x1.4f95115ddc5f5p-7,
    0x1.22ebd5f571b69p-5,  0x1.ed8854a67a0edp-5,  0x1.7d6fe2e430280p-6,  -0x1.de47d2e61cb1cp-5};
inline const std::vector<double> bce_weight_mean_grad1 = {
    0x1.aaaaaaaaaaaabp+0,  -0x1.29456ceff87b8p+0, -0x1.4fba9557e61c1p-1, -0x1.177aa9db46000p-3,
    0x1.6ba90f4ebc98bp-2,  0x1.290f3ea1ef261p+1,  0x1.a280e17910319p+1,  -0x1.763b5e997e0d3p+0,
    -0x1.e9ac460698bcbp-1, -0x1.cd1e7474e0099p-2, 0x1.6ec1764473ca9p-3,  0x1.2ba7ff5a688a9p+0};
inline const std::vector<double> l1_mean_y = {0x1.f09b9ce1a37a8p-3};
inline const std::vector<double> l1_mean_grad0 = {-0x1.5555555555555p-3, 0x1.5555555555555p-3,
                                                  0x1.5555555555555p-3,  0x1.5555555555555p-3,
                                                  -0x1.5555555555555p-3, -0x1.5555555555555p-3};
inline const std::vector<double> l1_mean_grad1 = {0x1.5555555555555p-3,  -0x1.5555555555555p-3,
                                                  -0x1.5555555555555p-3, -0x1.5555555555555p-3,
                                                  0x1.5555555555555p-3,  0x1.5555555555555p-3};
inline const std::vector<double> smooth_l1_mean_y = {0x1.3fbf35e7a7a3fp-2};
inline const std::vector<double> smooth_l1_mean_grad0 = {
    -0x1.5555555555555p-3, 0x1.5555555555555p-3,  0x1.4fc066d6fb846p-3,
    0x1.33d7be5f3a708p-5,  -0x1.6ba90f4ebc98ap-4, -0x1.5555555555555p-3};
inline const std::vector<double> smooth_l1_mean_grad1 = {
    0x1.5555555555555p-3,  -0x1.5555555555555p-3, -0x1.4fc066d6fb846p-3,
    -0x1.33d7be5f3a708p-5, 0x1.6ba90f4ebc98ap-4,  0x1.5555555555555p-3};
inline const std::vector<double> nll_sum_y = {0x1.d5e20fbafd35ap-2};
inline const std::vector<double> nll_sum_grad0 = {
    0x0.0p+0, 0x0.0p+0, -0x1.0000000000000p+0, 0x0.0p+0,
    0x0.0p+0, 0x0.0p+0, -0x1.0000000000000p+0, 0x0.0p+0,
    0x0.0p+0, 0x0.0p+0, -0x1.0000000000000p+0, 0x0.0p+0};
inline const std::vector<double> nll_image_sum_y = {0x1.40f391612c668p+0};
inline const std::vector<double> nll_image_sum_grad0 = {-0x1.0000000000000p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        -0x1.0000000000000p+0,
                                                        0x0.0p+0,
                                                        -0x1.0000000000000p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        -0x1.0000000000000p+0,
                                                        -0x1.0000000000000p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0,
                                                        0x0.0p+0};
inline const std::vector<double> bce_sum_y = {0x1.00b8a1e4ed4bbp+6};
inline const std::vector<double> bce_sum_grad0 = {
    -0x1.ffffffee4b79bp-1, 0x1.368c538564dd4p-2,  0x1.365a7681213a2p-1,  0x1.896e24df25547p-1,
    -0x1.97eb42b30b7d9p-3, -0x1.085b1b5ca0d22p-1, -0x1.a3a5aabcf44c8p-1, 0x1.f75fa03ab8878p-4,
    0x1.b461c0f02a91ep-2,  0x1.7331c57caf1d7p-1,  0x1.3cc83f8a516c7p-2,  -0x1.56ce17c9dde5cp-2};
inline const std::vector<double> bce_sum_grad1 = {
    0x1.4000000000000p+4,  -0x1.bde826909e51cp+3, -0x1.f7a09a427946bp+2, -0x1.cdc39d8ed7a8cp+0,
    0x1.10becb7b0d728p+2,  0x1.4a773f2ce8679p+3,  0x1.06478c4e250aep+4,  -0x1.18ac86fa2a1e0p+4,
    -0x1.6f413484f28d8p+3, -0x1.5a52b62b21be9p+2, 0x1.4ee7e59d0cf0cp-1,  0x1.ae0caf9264facp+2};
inline const std::vector<double> bce_weight_sum_y = {0x1.79e942cc12360p+6};
inline const std::vector<double> bce_weight_sum_grad0 = {
    -0x1.ffffffee4b79bp-1, 0x1.368c0d17fed64p-2,  0x1.363eff2e77347p-1,  0x1.824ff7d42f159p-1,
    -0x1.97eb42b30b7d9p-3, -0x1.64747ca083617p+0, -0x1.f6343ef276cd5p+0, 0x1.f75f9a0cca8f0p-4,
    0x1.b461c0f02a91ep-2,  0x1.72263f7cdb8b2p-1,  0x1.1e13ea2b241e0p-2,  -0x1.66b5de2c95855p-1};
inline const std::vector<double> bce_weight_sum_grad1 = {
    0x1.4000000000000p+4,  -0x1.bde82367f4b94p+3, -0x1.f797e003d92a2p+2, -0x1.a337fec8e9000p+0,
    0x1.10becb7b0d728p+2,  0x1.bd96ddf2e6b91p+4,  0x1.39e0a91acc253p+5,  -0x1.18ac86f31e89ep+4,
    -0x1.6f413484f28d8p+3, -0x1.59d6d757a8073p+2, 0x1.131118b356d7fp+1,  0x1.c17bff079ccfep+3};
inline const std::vector<double> l1_sum_y = {0x1.7474b5a93a9bep+0};
inline const std::vector<double> l1_sum_grad0 = {-0x1.0000000000000p+0, 0x1.0000000000000p+0,
                                                 0x1.0000000000000p+0,  0x1.0000000000000p+0,
                                                 -0x1.0000000000000p+0, -0x1.0000000000000p+0};
inline const std::vector<double> l1_sum_grad1 = {0x1.0000000000000p+0,  -0x1.0000000000000p+0,
                                                 -0x1.0000000000000p+0, -0x1.0000000000000p+0,
                                                 0x1.0000000000000p+0,  0x1.0000000000000p+0};
inline const std::vector<double> smooth_l1_sum_y = {0x1.df9ed0db7b75fp+0};
inline const std::vector<double> smooth_l1_sum_grad0 = {
    -0x1.0000000000000p+0, 0x1.0000000000000p+0,  0x1.f7a09a427946bp-1,
    0x1.cdc39d8ed7a8cp-3,  -0x1.10becb7b0d727p-1, -0x1.0000000000000p+0};
inline const std::vector<double> smooth_l1_sum_grad1 = {
    0x1.0000000000000p+0,  -0x1.0000000000000p+0, -0x1.f7a09a427946bp-1,
    -0x1.cdc39d8ed7a8cp-3, 0x1.10becb7b0d727p-1,  0x1.0000000000000p+0};
inline const std::vector<double> smooth_l1_zero_y = {0x1.f09b9ce1a37a8p-2};
inline const std::vector<double> smooth_l1_zero_grad0 = {
    -0x1.5555555555555p-3, 0x1.5555555555555p-3,  0x1.5555555555555p-3,
    0x1.5555555555555p-3,  -0x1.5555555555555p-3, -0x1.5555555555555p-3};
inline const std::vector<double> smooth_l1_zero_grad1 = {
    0x1.5555555555555p-3,  -0x1.5555555555555p-3, -0x1.5555555555555p-3,
    -0x1.5555555555555p-3, 0x1.5555555555555p-3,  0x1.5555555555555p-3};
inline const std::vector<float> init_uniform_0 = {
    0x1.c70cd40000000p-2f,  0x1.b464f40000000p-1f,  -0x1.5698ec0000000p-3f, -0x1.a19ad00000000p-4f,
    0x1.4a00bc0000000p-3f,  0x1.4d5f580000000p-1f,  0x1.bd955e0000000p-2f,  0x1.0b6f4e0000000p+0f,
    0x1.88a5020000000p-2f,  0x1.4c02e00000000p-1f,  0x1.c966940000000p-3f,  0x1.35d6780000000p-2f,
    -0x1.10e85c0000000p-2f, -0x1.7ea9500000000p-5f, 0x1.206ce00000000p-3f,  0x1.e93fdc0000000p-2f,
    0x1.7e356e0000000p-1f,  0x1.cccf0a0000000p-1f,  -0x1.dedec00000000p-5f, 0x1.f975480000000p-4f,
    0x1.71e0180000000p-1f,  0x1.12a26e0000000p+0f,  0x1.2ebed60000000p-2f,  0x1.02e0380000000p+0f,
    0x1.5102dc0000000p-2f,  0x1.0f08580000000p-1f,  0x1.210d2a0000000p+0f,  -0x1.f74d3c0000000p-3f,
    -0x1.6af6600000000p-6f, 0x1.0a5e7c0000000p-2f,  0x1.42de040000000p-3f,  0x1.1916900000000p+0f,
    -0x1.2804100000000p-5f, 0x1.ad0eb00000000p-4f,  -0x1.2f06080000000p-4f};
inline const std::vector<float> init_normal_0 = {
    -0x1.c06e140000000p+0f, -0x1.ce02280000000p+0f, -0x1.2f58000000000p-10f, -0x1.7895740000000p-2f,
    0x1.1945140000000p+1f,  0x1.e24f060000000p+0f,  -0x1.0e63680000000p-3f,  -0x1.dd7f040000000p+1f,
    0x1.2501380000000p+0f,  -0x1.0369e80000000p+1f, 0x1.3331000000000p+0f,   0x1.1dc3bc0000000p+0f,
    0x1.7ab7bc0000000p-1f,  0x1.7cd7260000000p+1f,  0x1.5de51c0000000p+1f,   0x1.64c2000000000p-8f,
    -0x1.1a47840000000p+1f, -0x1.72288c0000000p+1f, 0x1.a220080000000p+0f,   0x1.fe60700000000p-1f,
    0x1.611fd00000000p+0f,  0x1.731bec0000000p-1f,  0x1.c815f00000000p+0f,   0x1.61df3c0000000p+0f,
    0x1.17a5f00000000p-4f,  -0x1.f85e8c0000000p-1f, 0x1.a01d040000000p+0f,   0x1.35c4860000000p-1f,
    0x1.8bb45e0000000p+0f,  0x1.46aeaa0000000p+2f,  -0x1.38096e0000000p+1f,  -0x1.56313c0000000p+1f,
    0x1.7406780000000p+1f,  0x1.5690440000000p-1f,  -0x1.e678ac0000000p+0f};
inline const std::vector<float> init_trunc_normal_0 = {
    -0x1.257cac0000000p-7f, 0x1.6318ec0000000p-1f,  -0x1.3dd60a0000000p+0f, -0x1.0aad7a0000000p+0f,
    -0x1.e9dff20000000p-2f, 0x1.4e56ca0000000p-2f,  -0x1.845fd40000000p-6f, 0x1.2ac4460000000p+0f,
    -0x1.b3aa5e0000000p-4f, 0x1.49c31e0000000p-2f,  -0x1.7aaaac0000000p-2f, -0x1.e61c680000000p-3f,
    -0x1.b495000000000p+0f, -0x1.cd0ee80000000p-1f, -0x1.07b1ce0000000p-1f, 0x1.6b25460000000p-5f,
    0x1.f7e7940000000p-2f,  0x1.96747c0000000p-1f,  -0x1.dba1be0000000p-1f, -0x1.1815b40000000p-1f,
    0x1.cbf3160000000p-2f,  0x1.42c13c0000000p+0f,  -0x1.fd6a200000000p-3f, 0x1.11490e0000000p+0f,
    -0x1.8d60d80000000p-3f, 0x1.03f0c80000000p-3f,  0x1.7dedb00000000p+0f,  -0x1.93ff6c0000000p+0f,
    -0x1.afba580000000p-1f, -0x1.3b06d20000000p-2f, -0x1.f043dc0000000p-2f, 0x1.5af7180000000p+0f,
    -0x1.c03eec0000000p-1f, -0x1.29f3020000000p-1f, -0x1.ef82880000000p-1f};
inline const std::vector<float> init_trunc_normal_narrow_0 = {
    0x1.a956c40000000p-4f, 0x1.e004ac0000000p-4f, 0x1.5de7d80000000p-4f, 0x1.6755640000000p-4f,
    0x1.887ed60000000p-4f, 0x1.c2b7620000000p-4f, 0x1.a841740000000p-4f, 0x1.04737c0000000p-3f,
    0x1.a23d4e0000000p-4f, 0x1.c25e900000000p-4f, 0x1.8fc28c0000000p-4f, 0x1.98e8de0000000p-4f,
    0x1.4dcf640000000p-4f, 0x1.6ecfc40000000p-4f, 0x1.8619180000000p-4f, 0x1.ad46e00000000p-4f,
    0x1.cfbbe00000000p-4f, 0x1.e854a00000000p-4f, 0x1.6d40e00000000p-4f, 0x1.8406c00000000p-4f,
    0x1.cc54240000000p-4f, 0x1.08d6d80000000p-3f, 0x1.981ca20000000p-4f, 0x1.ffe5c80000000p-4f,
    0x1.9bf7620000000p-4f, 0x1.b373de0000000p-4f, 0x1.149eea0000000p-3f, 0x1.5167c20000000p-4f,
    0x1.7205700000000p-4f, 0x1.9404200000000p-4f, 0x1.8815c80000000p-4f, 0x1.0d75e00000000p-3f,
    0x1.7033a20000000p-4f, 0x1.81cb420000000p-4f, 0x1.6b2b2e0000000p-4f, 0x1.5044120000000p-4f,
    0x1.7669700000000p-4f, 0x1.0ccec00000000p-3f, 0x1.d554980000000p-4f, 0x1.d9c0680000000p-4f};
inline const std::vector<float> init_xavier_uniform_0 = {
    -0x1.162d0a0000000p-8f, 0x1.376f240000000p-2f,  -0x1.ddd2580000000p-2f, -0x1.ab407e0000000p-2f,
    -0x1.bf34920000000p-3f, 0x1.375bfe0000000p-3f,  -0x1.7015600000000p-7f, 0x1.cc50900000000p-2f,
    -0x1.9c2a4e0000000p-5f, 0x1.333e520000000p-3f,  -0x1.5ee6d40000000p-3f, -0x1.c877820000000p-4f,
    -0x1.1550be0000000p-1f, -0x1.807d7a0000000p-2f, -0x1.dea2920000000p-3f, 0x1.5817a40000000p-6f,
    0x1.cb06c20000000p-3f,  0x1.5c58640000000p-2f,  -0x1.8994bc0000000p-2f, -0x1.f99e6e0000000p-3f,
    0x1.a5bbde0000000p-3f,  0x1.e215a60000000p-2f,  -0x1.dde9760000000p-4f, 0x1.b26f580000000p-2f,
    -0x1.764d5c0000000p-4f, 0x1.eb72260000000p-5f,  0x1.06d6b20000000p-1f,  -0x1.0d47f60000000p-1f,
    -0x1.6d7afc0000000p-2f, -0x1.25f3b00000000p-3f, -0x1.c499700000000p-3f, 0x1.f5993e0000000p-2f,
    -0x1.784d8c0000000p-2f, -0x1.0b3f700000000p-2f, -0x1.95991e0000000p-2f, -0x1.0fdca20000000p-1f,
    -0x1.52e47c0000000p-2f, 0x1.f30ae60000000p-2f,  0x1.030db80000000p-2f,  0x1.1960d80000000p-2f,
    0x1.e883f00000000p-6f,  -0x1.29a3e20000000p-2f, 0x1.88e20a0000000p-4f,  -0x1.0f07a20000000p-1f,
    -0x1.a37d000000000p-2f, -0x1.2b4aee0000000p-2f, 0x1.6e4b0c0000000p-2f,  0x1.54640a0000000p-2f,
    -0x1.0178fa0000000p-2f, -0x1.4f29fe0000000p-6f, 0x1.734c940000000p-2f,  0x1.2092dc0000000p-1f,
    0x1.ccd2960000000p-3f,  0x1.39b6e80000000p-4f,  0x1.8540cc0000000p-2f,  -0x1.55d4ca0000000p-2f,
    0x1.b0bb0c0000000p-4f,  -0x1.c21b340000000p-2f, -0x1.925fa00000000p-2f, -0x1.2be7840000000p-2f,
    0x1.06af4c0000000p-2f,  0x1.d2f3800000000p-3f,  -0x1.57e46c0000000p-2f, 0x1.5ec7520000000p-3f,
    0x1.3eb5240000000p-2f,  -0x1.251a8c0000000p-4f, 0x1.62a9ae0000000p-6f,  0x1.0d08ae0000000p-3f,
    0x1.6829680000000p-2f,  0x1.16b8d40000000p-1f,  -0x1.bf635c0000000p-2f, -0x1.a982b00000000p-3f};
inline const std::vector<float> init_xavier_normal_0 = {
    -0x1.f7263c0000000p-3f, -0x1.0180340000000p-2f, -0x1.bff1ce0000000p-5f, -0x1.83cf4e0000000p-4f,
    0x1.7b4c200000000p-3f,  0x1.3544180000000p-3f,  -0x1.1a756c0000000p-4f, -0x1.d8a8180000000p-2f,
    0x1.200e520000000p-4f,  -0x1.1a4c720000000p-2f, 0x1.38d2780000000p-4f,  0x1.136a9a0000000p-4f,
    0x1.ac779a0000000p-6f,  0x1.148f9e0000000p-2f,  0x1.f319640000000p-3f,  -0x1.ba0b680000000p-5f,
    -0x1.2e41e60000000p-2f, -0x1.7af6ea0000000p-2f, 0x1.fa7be40000000p-4f,  0x1.62a0840000000p-3f,
    0x1.0ba0a40000000p-3f,  -0x1.5b7e740000000p-2f, -0x1.311d6a0000000p-4f, 0x1.9e10500000000p-2f,
    0x1.4f44720000000p-3f,  -0x1.05aa340000000p-3f, -0x1.35f89c0000000p-5f, 0x1.47fe200000000p-5f,
    0x1.3676040000000p-2f,  0x1.62797a0000000p-2f,  0x1.a6e9120000000p-3f,  -0x1.790c3c0000000p-3f,
    -0x1.1237720000000p-3f, 0x1.c3cfd40000000p-8f,  -0x1.b85d620000000p-4f, 0x1.bc138e0000000p-5f,
    0x1.8902580000000p-4f,  0x1.91e6d60000000p-6f,  0x1.1e606e0000000p-3f,  0x1.8a50840000000p-4f,
    -0x1.6dc92e0000000p-6f, 0x1.6226be0000000p-3f,  -0x1.02e9320000000p-4f, 0x1.7775480000000p-7f,
    0x1.d357ea0000000p-4f,  0x1.0138440000000p-1f,  -0x1.483b5c0000000p-2f, -0x1.628dc20000000p-2f,
    -0x1.2ccf900000000p-3f, 0x1.8613c40000000p-3f,  0x1.d7a66a0000000p-3f,  0x1.3debb40000000p-5f,
    -0x1.9bc1d40000000p-5f, -0x1.5e287a0000000p-4f, 0x1.e59ba40000000p-4f,  -0x1.61332e0000000p-4f,
    0x1.5138940000000p-2f,  0x1.d1393e0000000p-2f,  0x1.7d5f9c0000000p-2f,  0x1.09f3e20000000p-1f,
    -0x1.f70afc0000000p-3f, -0x1.1b56e20000000p-4f, -0x1.e83c3a0000000p-3f, -0x1.3097f80000000p-6f,
    0x1.24d4100000000p-4f,  -0x1.53f7c40000000p-3f, -0x1.6552b40000000p-2f, 0x1.0861540000000p-8f,
    -0x1.4f5f9a0000000p-3f, 0x1.4b71620000000p-5f,  0x1.1597d40000000p-3f,  0x1.1d35ba0000000p-3f};
inline const std::vector<float> init_kaiming_uniform_0 = {
    -0x1.0cbe560000000p-7f, 0x1.2cdfbe0000000p-1f,  -0x1.cd9e9e0000000p-1f, -0x1.9cc3bc0000000p-1f,
    -0x1.b00a9c0000000p-2f, 0x1.2ccd3e0000000p-2f,  -0x1.639a3c0000000p-6f, 0x1.bcb4ce0000000p-1f,
    -0x1.8e30840000000p-4f, 0x1.28d34c0000000p-2f,  -0x1.5300d40000000p-2f, -0x1.b8fd280000000p-3f,
    -0x1.0be9840000000p+0f, -0x1.7373ea0000000p-1f, -0x1.ce67ca0000000p-2f, 0x1.4c6cc00000000p-5f,
    0x1.bb76300000000p-2f,  0x1.5088960000000p-1f,  -0x1.7c3c440000000p-1f, -0x1.e8796a0000000p-2f,
    0x1.976f040000000p-2f,  0x1.d1bcec0000000p-1f,  -0x1.cdb4f60000000p-3f, 0x1.a3b43e0000000p-1f,
    -0x1.699c3c0000000p-3f, 0x1.dac8280000000p-4f,  0x1.fbda420000000p-1f,  -0x1.0426780000000p+0f,
    -0x1.6116700000000p-1f, -0x1.1bfc0a0000000p-2f};
inline const std::vector<float> init_kaiming_uniform_out_0 = {
    -0x1.1b47d00000000p-8f, 0x1.3d26260000000p-2f,  -0x1.e696fc0000000p-2f, -0x1.b317920000000p-2f,
    -0x1.c769620000000p-3f, 0x1.3d12a60000000p-3f,  -0x1.76d6800000000p-7f, 0x1.d4c2f40000000p-2f,
    -0x1.a3ba840000000p-5f, 0x1.38e1a40000000p-3f,  -0x1.65573c0000000p-3f, -0x1.d0d7d40000000p-4f,
    -0x1.1a677a0000000p-1f, -0x1.878bac0000000p-2f, -0x1.e76b080000000p-3f, 0x1.5e68100000000p-6f,
    0x1.d3731a0000000p-3f,  0x1.62bccc0000000p-2f,  -0x1.90cda40000000p-2f, -0x1.0172d20000000p-2f,
    0x1.ad79060000000p-3f,  0x1.eaee4e0000000p-2f,  -0x1.e6ae860000000p-4f, 0x1.ba682a0000000p-2f,
    -0x1.7d2bb40000000p-4f, 0x1.f476ca0000000p-5f,  0x1.0ba96a0000000p-1f,  -0x1.1238f20000000p-1f,
    -0x1.742fe00000000p-2f, -0x1.2b58900000000p-3f, -0x1.cce7980000000p-3f, 0x1.fecd940000000p-2f,
    -0x1.7f35480000000p-2f, -0x1.1026e00000000p-2f, -0x1.9d0a780000000p-2f, -0x1.14d9be0000000p-1f,
    -0x1.591c7c0000000p-2f, 0x1.fc333a0000000p-2f,  0x1.07ceaa0000000p-2f,  0x1.1e8aa80000000p-2f,
    0x1.f17ace0000000p-6f,  -0x1.2f1a160000000p-2f, 0x1.9017aa0000000p-4f,  -0x1.1400d60000000p-1f,
    -0x1.ab2f9c0000000p-2f, -0x1.30c8e60000000p-2f, 0x1.7503c40000000p-2f,  0x1.5aa3140000000p-2f,
    -0x1.06327e0000000p-2f, -0x1.55507a0000000p-6f, 0x1.7a1cd00000000p-2f,  0x1.25de7a0000000p-1f,
    0x1.d5475e0000000p-3f,  0x1.3f78a00000000p-4f,  0x1.8c65600000000p-2f,  -0x1.5c1a960000000p-2f,
    0x1.b8abdc0000000p-4f,  -0x1.ca5da40000000p-2f, -0x1.99c1d40000000p-2f, -0x1.31685c0000000p-2f,
    0x1.0b814c0000000p-2f,  0x1.db85140000000p-3f,  -0x1.5e33e80000000p-2f, 0x1.6537280000000p-3f,
    0x1.448e500000000p-2f,  -0x1.2a7b700000000p-4f, 0x1.692bc20000000p-6f,  0x1.11f8820000000p-3f,
    0x1.6ec5520000000p-2f,  0x1.1bd62a0000000p-1f,  -0x1.c799080000000p-2f, -0x1.b151960000000p-3f};
inline const std::vector<float> init_kaiming_normal_0 = {
    -0x1.657c9a0000000p-1f, -0x1.6de8600000000p-1f, -0x1.3e43880000000p-3f, -0x1.1389c40000000p-2f,
    0x1.0d7d760000000p-1f,  0x1.b777420000000p-2f,  -0x1.915f700000000p-3f, -0x1.4fd2580000000p+0f,
    0x1.9953920000000p-3f,  -0x1.9125340000000p-1f, 0x1.bc84e60000000p-3f,  0x1.875da20000000p-3f,
    0x1.306cd80000000p-4f,  0x1.88fe000000000p-1f,  -0x1.6c74f00000000p-4f, -0x1.1b83780000000p-4f,
    -0x1.85a9280000000p-2f, 0x1.4102f20000000p-6f,  -0x1.38e0de0000000p-2f, 0x1.3b83f60000000p-3f,
    0x1.173b780000000p-2f,  0x1.1d8ce80000000p-4f,  -0x1.0b0ffa0000000p-1f, -0x1.6fb4860000000p+0f,
    -0x1.03e3e40000000p-4f, 0x1.f73f6e0000000p-2f,  -0x1.6fe9580000000p-3f, 0x1.0ac3280000000p-5f,
    0x1.4c0bf20000000p-2f,  0x1.6d82260000000p+0f};
inline const std::vector<float> init_kaiming_normal_tanh_0 = {
    -0x1.c4e2dc0000000p-2f, -0x1.cf8dee0000000p-2f, -0x1.9332380000000p-4f, -0x1.5d11960000000p-3f,
    0x1.55681a0000000p-2f,  0x1.165f060000000p-2f,  -0x1.fc7bd80000000p-4f, -0x1.a970880000000p-1f,
    0x1.0347ac0000000p-3f,  -0x1.fc32140000000p-2f, 0x1.1992760000000p-3f,  0x1.efce640000000p-4f,
    0x1.81aa200000000p-5f,  0x1.f1dde00000000p-2f,  0x1.c13d980000000p-2f,  -0x1.8de2b60000000p-4f,
    -0x1.1010120000000p-1f, -0x1.551b680000000p-1f, 0x1.c7e33e0000000p-3f,  0x1.3f33680000000p-2f,
    0x1.e1c8d80000000p-3f,  -0x1.38c7c20000000p-1f, -0x1.12a2820000000p-3f, 0x1.74b3300000000p-1f,
    0x1.2dc66e0000000p-2f,  -0x1.d70cf20000000p-3f, -0x1.1701840000000p-4f, 0x1.273a260000000p-4f,
    0x1.1772640000000p-1f,  0x1.3f10440000000p-1f,  0x1.7ca9b40000000p-2f,  -0x1.5361be0000000p-2f,
    -0x1.eda5700000000p-3f, 0x1.96ad580000000p-7f,  -0x1.8c5fa40000000p-3f, 0x1.8fb6e60000000p-4f,
    0x1.61bfa80000000p-3f,  0x1.69c0bc0000000p-5f,  0x1.01c4ba0000000p-2f,  0x1.62ec720000000p-3f,
    -0x1.493eb20000000p-5f, 0x1.3ec5cc0000000p-2f,  -0x1.d217ca0000000p-4f, 0x1.51f3720000000p-6f,
    0x1.a4a83a0000000p-3f,  0x1.cf0c6e0000000p-1f,  -0x1.2771440000000p-1f, -0x1.3f22840000000p-1f,
    -0x1.0ec2ba0000000p-2f, 0x1.5f1c100000000p-2f,  0x1.a888980000000p-2f,  0x1.1e294e0000000p-4f,
    -0x1.729fb00000000p-4f, -0x1.3b2da60000000p-3f, 0x1.b518de0000000p-3f,  -0x1.3dea900000000p-3f,
    0x1.2f889a0000000p-1f,  0x1.a2bfc60000000p-1f,  0x1.57467e0000000p-1f,  0x1.dec4fe0000000p-1f,
    -0x1.c4ca560000000p-2f, -0x1.fe11b80000000p-4f, -0x1.b776440000000p-2f, -0x1.122a660000000p-5f,
    0x1.07935e0000000p-3f,  -0x1.32018c0000000p-2f, -0x1.41a0a40000000p-1f, 0x1.dbf0520000000p-8f,
    -0x1.2ddee00000000p-2f, 0x1.2a552c0000000p-4f,  0x1.f3b9840000000p-3f,  0x1.00b7de0000000p-2f};
inline const std::vector<float> init_orthogonal_tall_0 = {
    -0x1.dac1280000000p-2f, -0x1.3f009a0000000p-5f, -0x1.60d4a80000000p-2f, -0x1.852b540000000p-2f,
    0x1.65e45c0000000p-2f,  -0x1.f611240000000p-6f, 0x1.16015c0000000p-6f,  -0x1.b732300000000p-1f,
    0x1.0fccbc0000000p-3f,  -0x1.0f48720000000p-1f, 0x1.b392ac0000000p-4f,  -0x1.59d0440000000p-3f,
    0x1.94497a0000000p-5f,  0x1.87f1e00000000p-2f,  0x1.3b28600000000p-1f,  -0x1.7118420000000p-4f,
    -0x1.1d33240000000p-1f, -0x1.3862520000000p-3f, -0x1.5d2e400000000p-5f, -0x1.175e800000000p-5f,
    0x1.72d47c0000000p-3f,  -0x1.9752020000000p-4f, 0x1.6cd35c0000000p-2f,  0x1.cd73520000000p-4f,
    -0x1.6c1bde0000000p-4f, -0x1.7a070c0000000p-3f, 0x1.61d5760000000p-3f,  -0x1.f739800000000p-4f,
    0x1.b8f8220000000p-3f,  0x1.3c78840000000p-1f,  -0x1.b75db60000000p-2f, -0x1.c3d27a0000000p-5f,
    0x1.fb62f20000000p-2f,  -0x1.6439800000000p-2f, -0x1.8a0fc60000000p-2f, 0x1.cf02940000000p-3f};
inline const std::vector<float> init_orthogonal_wide_0 = {
    -0x1.574aa80000000p-2f, -0x1.5f60d20000000p-2f, -0x1.31a04c0000000p-4f, -0x1.0898d80000000p-3f,
    0x1.02ca060000000p-2f,  0x1.a603f80000000p-3f,  -0x1.816f600000000p-4f, -0x1.427ca20000000p-1f,
    0x1.8912a80000000p-4f,  -0x1.8137740000000p-2f, 0x1.aade400000000p-4f,  0x1.77d34c0000000p-4f,
    0x1.2456480000000p-5f,  0x1.7963200000000p-2f,  0x1.54873a0000000p-2f,  -0x1.2d99c60000000p-4f,
    -0x1.9c73a80000000p-2f, -0x1.028fe40000000p-1f, 0x1.5991180000000p-3f,  0x1.e3e9f40000000p-3f,
    0x1.6d32620000000p-3f,  -0x1.da2e280000000p-2f, -0x1.a059e00000000p-4f, 0x1.1a827e0000000p-1f,
    0x1.b0ff9c0000000p-3f,  -0x1.fb49b00000000p-3f, -0x1.1d58540000000p-4f, 0x1.72bb5e0000000p-5f,
    0x1.05a28c0000000p-1f,  0x1.24f3b80000000p-1f,  0x1.3f20400000000p-2f,  -0x1.8072720000000p-2f,
    -0x1.940ef20000000p-3f, -0x1.4c97b40000000p-5f, -0x1.3cd5700000000p-3f, 0x1.9050d20000000p-4f,
    0x1.3ecc4a0000000p-3f,  0x1.6c49820000000p-4f,  0x1.0f93e40000000p-2f,  0x1.2136a00000000p-3f,
    -0x1.7146580000000p-4f, 0x1.9f23fc0000000p-3f,  -0x1.3861fa0000000p-4f, 0x1.9c282c0000000p-5f,
    0x1.a125020000000p-3f,  0x1.73cdb00000000p-1f,  -0x1.0905d00000000p-1f, -0x1.dfed700000000p-2f,
    -0x1.7eea3c0000000p-3f, 0x1.4c01fc0000000p-3f,  0x1.33650c0000000p-2f,  0x1.b7f18e0000000p-5f,
    0x1.a5c8c60000000p-4f,  0x1.09feca0000000p-4f,  0x1.fb1c000000000p-3f,  -0x1.34ca080000000p-2f,
    0x1.b26a640000000p-2f,  0x1.3022000000000p-1f,  0x1.fed4340000000p-2f,  0x1.8f06840000000p-1f,
    -0x1.351c7e0000000p-2f, -0x1.02e5960000000p-5f, -0x1.d03c6a0000000p-3f, 0x1.6ae2940000000p-8f,
    0x1.f6d54a0000000p-6f,  -0x1.e32c540000000p-3f, -0x1.0047d40000000p-1f, 0x1.7fc0920000000p-5f,
    -0x1.3de4380000000p-3f, 0x1.b44b380000000p-3f,  0x1.1570f00000000p-5f,  0x1.041f6e0000000p-3f};
inline const std::vector<float> init_orthogonal_square_0 = {
    -0x1.186f880000000p-1f, -0x1.42ccee0000000p-1f, -0x1.13605a0000000p-4f, -0x1.41f4960000000p-5f,
    0x1.16c3c80000000p-1f,  0x1.58bed60000000p-2f,  -0x1.a146d80000000p-2f, -0x1.49259a0000000p-1f,
    0x1.0d65300000000p-1f,  -0x1.658d260000000p-3f, 0x1.679a040000000p-1f,  -0x1.0e36ac0000000p-3f,
    0x1.64ac280000000p-2f,  0x1.2e2ce80000000p-4f,  0x1.3447b80000000p-1f,  -0x1.bcd0100000000p-5f,
    -0x1.ccdda40000000p-2f, 0x1.582d440000000p-1f,  0x1.68e4440000000p-2f,  -0x1.de8dbe0000000p-2f,
    0x1.33e75c0000000p-2f,  -0x1.dc73180000000p-2f, -0x1.84a1fa0000000p-4f, -0x1.89ed200000000p-1f,
    -0x1.36d4ae0000000p-2f};
inline const std::vector<float> init_uniform_7 = {
    0x1.0138740000000p-1f, -0x1.d69c000000000p-10f, 0x1.60acb00000000p-1f, 0x1.5ee4480000000p-1f,
    0x1.9292f00000000p-5f, 0x1.59b1be0000000p-2f,   0x1.5c4ac00000000p-7f, 0x1.4a099c0000000p-1f,
    0x1.fbd9e80000000p-3f, 0x1.f42c900000000p-1f,   0x1.f6ff100000000p-1f, 0x1.0d84ac0000000p-1f,
    0x1.0ac4f80000000p-3f, 0x1.369c400000000p-7f,   0x1.7875600000000p-2f, 0x1.e953900000000p-3f,
    0x1.8fa6f40000000p-1f, -0x1.85fc080000000p-3f,  0x1.27a62e0000000p+0f, -0x1.1b47a00000000p-3f,
    0x1.0639980000000p+0f, 0x1.476eec0000000p-2f,   0x1.abece40000000p-1f, 0x1.7c0afc0000000p-1f,
    0x1.ecf2d40000000p-2f, 0x1.2e00660000000p-1f,   0x1.0501a40000000p+0f, 0x1.49280c0000000p-1f,
    0x1.b221540000000p-1f, -0x1.0a96200000000p-3f,  0x1.f7c3a00000000p-1f, 0x1.6a8f9a0000000p-1f,
    0x1.47aaea0000000p-1f, 0x1.1b72a40000000p-1f,   0x1.a196340000000p-1f};
inline const std::vector<float> init_normal_7 = {
    -0x1.23e8ac0000000p+0f, 0x1.4a902c0000000p+0f,   0x1.261ede0000000p+1f,  -0x1.236e700000000p+1f,
    0x1.53fbfc0000000p-3f,  0x1.11ff2c0000000p+0f,   -0x1.907a4c0000000p-1f, -0x1.498d340000000p+0f,
    0x1.2d31ec0000000p+1f,  -0x1.245d500000000p-1f,  -0x1.d1c6dc0000000p+0f, -0x1.ae66e00000000p-2f,
    0x1.eac5a20000000p+0f,  0x1.4343f00000000p+1f,   0x1.ebed280000000p-1f,  0x1.5715100000000p+1f,
    -0x1.5529820000000p+1f, -0x1.316cc80000000p-3f,  0x1.16933c0000000p+2f,  0x1.4630180000000p+2f,
    0x1.3504a60000000p+1f,  -0x1.a5c09c0000000p-1f,  -0x1.282ade0000000p+0f, -0x1.6c37740000000p-1f,
    0x1.d540200000000p-3f,  0x1.fe86480000000p+0f,   0x1.b93fea0000000p+0f,  -0x1.9d05b40000000p+0f,
    -0x1.7bac800000000p-6f, -0x1.1620000000000p-12f, 0x1.8092fe0000000p+0f,  0x1.0523780000000p+0f,
    -0x1.6313d40000000p+1f, 0x1.a17f3c0000000p-1f,   0x1.4a9e8e0000000p+0f};
inline const std::vector<float> init_trunc_normal_7 = {
    0x1.56a3c80000000p-4f,  -0x1.9872b80000000p-1f, 0x1.90035e0000000p-2f,  0x1.89e1c20000000p-2f,
    -0x1.6191180000000p-1f, -0x1.71304a0000000p-3f, -0x1.8aa5e20000000p-1f, 0x1.43233e0000000p-2f,
    -0x1.4fe73a0000000p-2f, 0x1.f355ea0000000p-1f,  0x1.faa10c0000000p-1f,  0x1.f468180000000p-4f,
    -0x1.119acc0000000p-1f, -0x1.8be9c20000000p-1f, -0x1.0dd62a0000000p-3f, -0x1.5f88960000000p-2f,
    0x1.1bdc780000000p-1f,  -0x1.535da80000000p+0f, 0x1.a17ed80000000p+0f,  -0x1.25b4560000000p+0f,
    0x1.1aec460000000p+0f,  -0x1.ac8f820000000p-3f, 0x1.521c1e0000000p-1f,  0x1.f01ee20000000p-2f,
    0x1.9a66740000000p-5f,  0x1.ccb0340000000p-3f,  0x1.175ed60000000p+0f,  0x1.402f4a0000000p-2f,
    0x1.5e84a80000000p-1f,  -0x1.1f5df40000000p+0f, 0x1.fca1940000000p-1f,  0x1.b248140000000p-2f,
    0x1.3b33800000000p-2f,  0x1.5402e20000000p-3f,  0x1.3ddcde0000000p-1f};
inline const std::vector<float> init_trunc_normal_narrow_7 = {
    0x1.b034d80000000p-4f, 0x1.74a2f00000000p-4f, 0x1.c7b8620000000p-4f, 0x1.c740460000000p-4f,
    0x1.7b065e0000000p-4f, 0x1.9cf1900000000p-4f, 0x1.7636ca0000000p-4f, 0x1.c1de1e0000000p-4f,
    0x1.929cc40000000p-4f, 0x1.f7c8780000000p-4f, 0x1.f905f80000000p-4f, 0x1.b318440000000p-4f,
    0x1.84d7c00000000p-4f, 0x1.76118c0000000p-4f, 0x1.a069280000000p-4f, 0x1.9190f00000000p-4f,
    0x1.d4b7960000000p-4f, 0x1.5a5fd40000000p-4f, 0x1.1cdd8a0000000p-3f, 0x1.622d000000000p-4f,
    0x1.01a2860000000p-3f, 0x1.9ae3880000000p-4f, 0x1.dd4cde0000000p-4f, 0x1.cf21180000000p-4f,
    0x1.adb4920000000p-4f, 0x1.bae3f20000000p-4f, 0x1.0102d80000000p-3f, 0x1.c1a4e60000000p-4f,
    0x1.df48bc0000000p-4f, 0x1.6359b00000000p-4f, 0x1.f95d520000000p-4f, 0x1.ca59a60000000p-4f,
    0x1.c144640000000p-4f, 0x1.b667c80000000p-4f, 0x1.da14780000000p-4f, 0x1.1762100000000p-3f,
    0x1.96aad60000000p-4f, 0x1.78eb300000000p-4f, 0x1.9426e80000000p-4f, 0x1.73f5040000000p-4f};
inline const std::vector<float> init_xavier_uniform_7 = {
    0x1.4463f00000000p-5f,   -0x1.5db8c00000000p-2f, 0x1.71b93c0000000p-3f,
    0x1.6c552e0000000p-3f,   -0x1.364ad80000000p-2f, -0x1.5c0bfe0000000p-4f,
    -0x1.541aba0000000p-2f,  0x1.2d468a0000000p-3f,  -0x1.38c3c20000000p-3f,
    0x1.97dc2e0000000p-2f,   0x1.9c207e0000000p-2f,  0x1.d921360000000p-5f,
    -0x1.ef01600000000p-3f,  -0x1.54fe9c0000000p-2f, -0x1.fe0ca40000000p-5f,
    -0x1.46c4a20000000p-3f,  0x1.ffc53a0000000p-3f,  -0x1.efbb780000000p-2f,
    0x1.10d03e0000000p-1f,   -0x1.c766d80000000p-2f, 0x1.bc8fd00000000p-2f,
    -0x1.9343520000000p-4f,  0x1.2aa1580000000p-2f,  0x1.c47a420000000p-3f,
    0x1.84d5180000000p-6f,   0x1.b1016a0000000p-4f,  0x1.b8e08a0000000p-2f,
    0x1.2a9c820000000p-3f,   0x1.3402d60000000p-2f,  -0x1.c1179c0000000p-2f,
    0x1.9d49a80000000p-2f,   0x1.8f9dfc0000000p-3f,  0x1.261c140000000p-3f,
    0x1.40cd8e0000000p-4f,   0x1.1afff00000000p-2f,  0x1.0a998a0000000p-1f,
    -0x1.025d6a0000000p-3f,  -0x1.436e300000000p-2f, -0x1.2421320000000p-3f,
    -0x1.61d67e0000000p-2f,  0x1.1746280000000p-2f,  -0x1.1eeecc0000000p-2f,
    -0x1.35d73e0000000p-2f,  0x1.f4eae00000000p-2f,  0x1.09a0140000000p-1f,
    0x1.0b16680000000p-4f,   -0x1.921eec0000000p-4f, -0x1.2bc3360000000p-4f,
    0x1.1305c80000000p-2f,   -0x1.0f0de60000000p-1f, -0x1.da743c0000000p-2f,
    0x1.cfc02e0000000p-2f,   0x1.1e92a40000000p-1f,  -0x1.13febe0000000p-5f,
    -0x1.cab9cc0000000p-2f,  0x1.fb99e20000000p-7f,  -0x1.0e15b40000000p-2f,
    -0x1.1db9320000000p-10f, 0x1.1c28ee0000000p-2f,  0x1.00ff0c0000000p-2f,
    -0x1.10507a0000000p-4f,  0x1.ff550c0000000p-5f,  0x1.3bfab60000000p-3f,
    -0x1.c70d280000000p-2f,  -0x1.89a92e0000000p-3f, 0x1.6bb11e0000000p-6f,
    -0x1.4b44e60000000p-2f,  -0x1.fb185e0000000p-3f, 0x1.85fd660000000p-3f,
    0x1.4e1ffa0000000p-2f,   0x1.044e580000000p-7f,  -0x1.c3a71c0000000p-3f};
inline const std::vector<float> init_xavier_normal_7 = {
    -0x1.6e86ca0000000p-3f, 0x1.619f8c0000000p-4f,  0x1.91bb3e0000000p-3f,  -0x1.363ef80000000p-2f,
    -0x1.2a87680000000p-5f, 0x1.fdbeea0000000p-5f,  -0x1.1e82a80000000p-3f, -0x1.8f623e0000000p-3f,
    0x1.9e14e20000000p-3f,  -0x1.dea6dc0000000p-4f, -0x1.03253c0000000p-2f, -0x1.9b4c420000000p-4f,
    0x1.3ca7440000000p-3f,  0x1.c49c5c0000000p-3f,  0x1.9bddec0000000p-5f,  0x1.e734ba0000000p-3f,
    -0x1.61a78e0000000p-2f, -0x1.221ab40000000p-4f, 0x1.ae74f20000000p-2f,  -0x1.26f8a40000000p-4f,
    0x1.62bf9e0000000p-5f,  0x1.5d842c0000000p-3f,  0x1.d0634c0000000p-3f,  -0x1.43ca900000000p-3f,
    -0x1.7639bc0000000p-5f, -0x1.80f40e0000000p-5f, -0x1.95bbe00000000p-2f, -0x1.3495980000000p-4f,
    -0x1.cca5d60000000p-2f, 0x1.2d43340000000p-3f,  -0x1.27b55a0000000p-2f, -0x1.2fd8ec0000000p-2f,
    -0x1.2aa3100000000p-6f, -0x1.4fc2cc0000000p-8f, 0x1.37b8740000000p-5f,  0x1.00c9ca0000000p-1f,
    0x1.abbd200000000p-3f,  -0x1.27cb9e0000000p-3f, -0x1.723e640000000p-3f, -0x1.0eaf4a0000000p-3f,
    -0x1.391dde0000000p-2f, 0x1.21e5760000000p-2f,  0x1.6eacca0000000p-2f,  -0x1.d83e340000000p-3f,
    -0x1.d39f860000000p-5f, -0x1.bf25b80000000p-5f, 0x1.bfe9a20000000p-4f,  0x1.d0d9f40000000p-5f,
    -0x1.3e8b600000000p-5f, -0x1.cfe40c0000000p-5f, -0x1.9e63460000000p-9f, -0x1.5721300000000p-4f,
    -0x1.4b67260000000p-1f, -0x1.d9f9100000000p-3f, -0x1.142fee0000000p-4f, 0x1.a18b000000000p-3f,
    0x1.5a45340000000p-2f,  0x1.0ba7920000000p-3f,  -0x1.1cfaf20000000p-3f, -0x1.fec7260000000p-2f,
    -0x1.48a0320000000p-4f, -0x1.8a41780000000p-3f, 0x1.e809680000000p-4f,  0x1.097c820000000p-5f,
    -0x1.51b5960000000p-3f, 0x1.5e26700000000p-4f,  0x1.4dd55a0000000p-3f,  0x1.3451340000000p-2f,
    0x1.1fbf620000000p-2f,  0x1.841d260000000p-3f,  -0x1.34dbfc0000000p-2f, -0x1.ae7a0a0000000p-3f};
inline const std::vector<float> init_kaiming_uniform_7 = {
    0x1.3964140000000p-4f,  -0x1.51dcfe0000000p-1f, 0x1.652fda0000000p-2f,  0x1.5ffa980000000p-2f,
    -0x1.2bc55c0000000p-1f, -0x1.503ec80000000p-3f, -0x1.4892760000000p-1f, 0x1.230f520000000p-2f,
    -0x1.2e28ce0000000p-2f, 0x1.8a07c20000000p-1f,  0x1.8e27080000000p-1f,  0x1.c916380000000p-4f,
    -0x1.de387c0000000p-2f, -0x1.496e9c0000000p-1f, -0x1.ecc12a0000000p-4f, -0x1.3bb0200000000p-2f,
    0x1.ee6ad00000000p-2f,  -0x1.deec460000000p-1f, 0x1.0790160000000p+0f,  -0x1.b7f5bc0000000p-1f,
    0x1.ad7cce0000000p-1f,  -0x1.8596ce0000000p-3f, 0x1.2081160000000p-1f,  0x1.b522880000000p-2f,
    0x1.77a5d80000000p-5f,  0x1.a252b80000000p-3f,  0x1.a9ed840000000p-1f,  0x1.207c6a0000000p-2f,
    0x1.2991280000000p-1f,  -0x1.b1dd460000000p-1f};
inline const std::vector<float> init_kaiming_uniform_out_7 = {
    0x1.4a57d00000000p-5f,   -0x1.64239e0000000p-2f, 0x1.7882100000000p-3f,
    0x1.7304b00000000p-3f,   -0x1.3bfc7e0000000p-2f, -0x1.626efe0000000p-4f,
    -0x1.5a586c0000000p-2f,  0x1.32cdd40000000p-3f,  -0x1.3e81040000000p-3f,
    0x1.9f582a0000000p-2f,   0x1.a3b0840000000p-2f,  0x1.e1cfd00000000p-5f,
    -0x1.f816bc0000000p-3f,  -0x1.5b407a0000000p-2f, -0x1.03b4560000000p-4f,
    -0x1.4cc3ac0000000p-3f,  0x1.0494ac0000000p-2f,  -0x1.f8d4400000000p-2f,
    0x1.15d1d20000000p-1f,   -0x1.cfc2280000000p-2f, 0x1.c4b8360000000p-2f,
    -0x1.9aa9b60000000p-4f,  0x1.301c340000000p-2f,  0x1.ccc7d60000000p-3f,
    0x1.8bf7b20000000p-6f,   0x1.b8f3860000000p-4f,  0x1.c0f7a00000000p-2f,
    0x1.3017460000000p-3f,   0x1.39a9c40000000p-2f,  -0x1.c9554a0000000p-2f,
    0x1.a4df240000000p-2f,   0x1.96f33e0000000p-3f,  0x1.2b81b40000000p-3f,
    0x1.46b0940000000p-4f,   0x1.20315e0000000p-2f,  0x1.0f7dee0000000p-1f,
    -0x1.071b200000000p-3f,  -0x1.495d8c0000000p-2f, -0x1.297d840000000p-3f,
    -0x1.6854b20000000p-2f,  0x1.1c66160000000p-2f,  -0x1.2432b60000000p-2f,
    -0x1.3b86c40000000p-2f,  0x1.fe1c020000000p-2f,  0x1.0e7fe60000000p-1f,
    0x1.0ffd180000000p-4f,   -0x1.997ff00000000p-4f, -0x1.3143640000000p-4f,
    0x1.1811bc0000000p-2f,   -0x1.1407380000000p-1f, -0x1.e3290c0000000p-2f,
    0x1.d842b60000000p-2f,   0x1.23d4dc0000000p-1f,  -0x1.190f440000000p-5f,
    -0x1.d324ba0000000p-2f,  0x1.0275340000000p-6f,  -0x1.130a760000000p-2f,
    -0x1.22f76c0000000p-10f, 0x1.215fd00000000p-2f,  0x1.05b6520000000p-2f,
    -0x1.154fb60000000p-4f,  0x1.045b8e0000000p-4f,  0x1.41c7120000000p-3f,
    -0x1.cf66d40000000p-2f,  -0x1.90e2760000000p-3f, 0x1.725d9e0000000p-6f,
    -0x1.5159140000000p-2f,  -0x1.0233420000000p-2f, 0x1.8d256e0000000p-3f,
    0x1.5441920000000p-2f,   0x1.09152c0000000p-7f,  -0x1.cbf0d00000000p-3f};
inline const std::vector<float> init_kaiming_normal_7 = {
    -0x1.046a9c0000000p-1f, 0x1.f67f540000000p-3f,  0x1.1d6df00000000p-1f,  -0x1.b8dbc00000000p-1f,
    -0x1.a835620000000p-4f, 0x1.6a2c680000000p-3f,  -0x1.9721560000000p-2f, -0x1.1bc2ee0000000p-1f,
    0x1.2634460000000p-1f,  -0x1.5414cc0000000p-2f, -0x1.703ea80000000p-1f, -0x1.2439f60000000p-2f,
    0x1.c1f69c0000000p-2f,  0x1.4194420000000p-1f,  -0x1.b7c3ea0000000p-1f, 0x1.3fcace0000000p-2f,
    -0x1.a85cb00000000p-5f, -0x1.dd1d740000000p-7f, 0x1.baf42a0000000p-4f,  0x1.6ce5280000000p+0f,
    0x1.2fe85a0000000p-1f,  -0x1.a452fe0000000p-2f, 0x1.bc32720000000p-1f,  0x1.be66240000000p-1f,
    -0x1.bcf00c0000000p-1f, 0x1.9bf1120000000p-1f,  0x1.04859a0000000p+0f,  -0x1.4f871c0000000p-1f,
    -0x1.4c3ed40000000p-3f, -0x1.3db2880000000p-3f};
inline const std::vector<float> init_kaiming_normal_tanh_7 = {
    -0x1.49e95c0000000p-2f, 0x1.3e4c1c0000000p-3f,  0x1.6999800000000p-2f,  -0x1.1740d80000000p-1f,
    -0x1.0cb4ee0000000p-4f, 0x1.cad2d80000000p-4f,  -0x1.01e38a0000000p-2f, -0x1.677c8a0000000p-2f,
    0x1.74b74c0000000p-2f,  -0x1.aed5fa0000000p-3f, -0x1.d283de0000000p-2f, -0x1.7235de0000000p-3f,
    0x1.1d05460000000p-2f,  0x1.9765700000000p-2f,  0x1.72b8fa0000000p-4f,  0x1.b689160000000p-2f,
    -0x1.3e53500000000p-1f, -0x1.051fac0000000p-3f, 0x1.8374960000000p-1f,  -0x1.0981240000000p-3f,
    0x1.3f4f660000000p-4f,  0x1.3a99c20000000p-2f,  0x1.a1ff320000000p-2f,  -0x1.23720a0000000p-2f,
    -0x1.50d76a0000000p-4f, -0x1.5a7f620000000p-4f, -0x1.6d33c60000000p-1f, -0x1.15c1f60000000p-3f,
    -0x1.9ea1620000000p-1f, 0x1.0f2ad00000000p-2f,  -0x1.0a2b000000000p-1f, -0x1.117e6e0000000p-1f,
    -0x1.0ccdd20000000p-5f, -0x1.2e38280000000p-7f, 0x1.18949e0000000p-4f,  0x1.ce458a0000000p-1f,
    0x1.8102480000000p-2f,  -0x1.0a3f0c0000000p-2f, -0x1.4d41e60000000p-2f, -0x1.e749c80000000p-3f,
    -0x1.19d6540000000p-1f, 0x1.04efc00000000p-1f,  0x1.4a0b900000000p-1f,  -0x1.a911380000000p-2f,
    -0x1.a4e8b00000000p-4f, -0x1.927a860000000p-4f, 0x1.932ade0000000p-3f,  0x1.a26a000000000p-4f,
    -0x1.1eb9060000000p-4f, -0x1.a18ca80000000p-4f, -0x1.74fddc0000000p-8f, -0x1.34da1a0000000p-3f,
    -0x1.2a4bf60000000p+0f, -0x1.aa9fd60000000p-2f, -0x1.f1319e0000000p-4f, 0x1.77d4e60000000p-2f,
    0x1.37adce0000000p-1f,  0x1.e1d5520000000p-3f,  -0x1.0082f60000000p-2f, -0x1.cbc0b00000000p-1f,
    -0x1.27cc080000000p-3f, -0x1.62dee60000000p-2f, 0x1.b748860000000p-3f,  0x1.ddee1a0000000p-5f,
    -0x1.2ff91e0000000p-2f, 0x1.3b2bd00000000p-3f,  0x1.2c7c020000000p-2f,  0x1.1584660000000p-1f,
    0x1.0300a00000000p-1f,  0x1.5d57a80000000p-2f,  -0x1.1601520000000p-1f, -0x1.83792c0000000p-2f};
inline const std::vector<float> init_orthogonal_tall_7 = {
    -0x1.2469e00000000p-2f, 0x1.a71aa60000000p-3f,  0x1.9155d00000000p-4f,  -0x1.7b037e0000000p-1f,
    -0x1.dc54a60000000p-5f, 0x1.551df20000000p-3f,  -0x1.0957600000000p-1f, -0x1.17c9d40000000p-3f,
    0x1.4a5a520000000p-2f,  -0x1.262d080000000p-2f, -0x1.6f74a40000000p-3f, -0x1.4047840000000p-4f,
    0x1.f93ff80000000p-3f,  0x1.4aa1ce0000000p-1f,  0x1.f553d80000000p-3f,  -0x1.0d19800000000p-2f,
    -0x1.1a24f40000000p-1f, -0x1.0db8360000000p-2f, 0x1.0ddbe60000000p-1f,  -0x1.3e46480000000p-5f,
    0x1.553f9e0000000p-2f,  -0x1.739b120000000p-2f, 0x1.e6f4ce0000000p-5f,  -0x1.216c9a0000000p-2f,
    -0x1.8250260000000p-5f, 0x1.cbc2600000000p-2f,  0x1.3f1a3e0000000p-3f,  0x1.053e760000000p-1f,
    -0x1.7511700000000p-4f, -0x1.4e065c0000000p-3f, 0x1.e619f40000000p-3f,  0x1.f65b6a0000000p-4f,
    -0x1.23d5a80000000p-1f, 0x1.c793a20000000p-6f,  -0x1.08efcc0000000p-1f, 0x1.3194fa0000000p-5f};
inline const std::vector<float> init_orthogonal_wide_7 = {
    -0x1.20b1900000000p-2f,  0x1.1687c00000000p-3f,  0x1.3c6c2a0000000p-2f,
    -0x1.e8ba840000000p-2f,  -0x1.d645520000000p-5f, 0x1.917fec0000000p-4f,
    -0x1.c3568a0000000p-3f,  -0x1.3a92ca0000000p-2f, 0x1.46266c0000000p-2f,
    -0x1.7902340000000p-3f,  -0x1.983af20000000p-2f, -0x1.43f5200000000p-3f,
    0x1.f2d2780000000p-3f,   0x1.647f5c0000000p-2f,  0x1.4467dc0000000p-4f,
    0x1.7fbf0e0000000p-2f,   -0x1.168e0e0000000p-1f, -0x1.c8ffe00000000p-4f,
    0x1.530c4a0000000p-1f,   -0x1.d0aa980000000p-4f, 0x1.176aa40000000p-4f,
    0x1.134ba20000000p-2f,   0x1.6dc6100000000p-2f,  -0x1.fe11000000000p-3f,
    -0x1.552d2c0000000p-10f, -0x1.78b9780000000p-4f, -0x1.31ce8a0000000p-1f,
    0x1.f23a580000000p-12f,  -0x1.2eba320000000p-1f, 0x1.696f580000000p-3f,
    -0x1.5caeb40000000p-2f,  -0x1.54afac0000000p-2f, -0x1.79b68a0000000p-4f,
    0x1.0889120000000p-5f,   0x1.163f740000000p-3f,  0x1.69b69a0000000p-1f,
    0x1.d3b00c0000000p-3f,   -0x1.1240540000000p-2f, -0x1.0998ac0000000p-2f,
    -0x1.07349c0000000p-2f,  -0x1.2d85520000000p-2f, 0x1.9d344c0000000p-2f,
    0x1.5ba11a0000000p-2f,   -0x1.240b140000000p-2f, -0x1.751b200000000p-4f,
    -0x1.0b1a300000000p-3f,  0x1.21996e0000000p-4f,  0x1.086b080000000p-3f,
    0x1.a440c20000000p-9f,   -0x1.b7ac480000000p-4f, -0x1.d175400000000p-4f,
    -0x1.2168a20000000p-6f,  -0x1.c2a6840000000p-1f, -0x1.37db780000000p-2f,
    -0x1.3072100000000p-4f,  0x1.2e934c0000000p-2f,  0x1.7bb4780000000p-2f,
    0x1.a96c3c0000000p-3f,   -0x1.7dba5a0000000p-4f, -0x1.1dd3500000000p-1f,
    -0x1.0d40860000000p-3f,  -0x1.5b74360000000p-2f, 0x1.e2692e0000000p-4f,
    -0x1.a36b9c0000000p-5f,  -0x1.150a7e0000000p-3f, 0x1.550aac0000000p-3f,
    0x1.d32c040000000p-4f,   0x1.8e27a40000000p-2f,  0x1.60b4040000000p-2f,
    0x1.789c800000000p-3f,   -0x1.d11bb00000000p-2f, -0x1.b7a1360000000p-3f};
inline const std::vector<float> init_orthogonal_square_7 = {
    -0x1.1a2eb80000000p-1f, 0x1.b45afc0000000p-3f,  0x1.c8358c0000000p-2f,  -0x1.2d42460000000p-2f,
    -0x1.35ab9e0000000p-1f, 0x1.8871ce0000000p-3f,  -0x1.886b640000000p-2f, -0x1.a4705e0000000p-2f,
    0x1.2645780000000p-2f,  -0x1.80f0a00000000p-1f, -0x1.be081e0000000p-5f, 0x1.aa75900000000p-1f,
    -0x1.0dc5fa0000000p-1f, 0x1.f1f5880000000p-4f,  -0x1.aae1e00000000p-4f, 0x1.5a85620000000p-2f,
    -0x1.0e0d2e0000000p-5f, -0x1.1ab1f00000000p-2f, -0x1.ca10ba0000000p-1f, -0x1.690f560000000p-4f,
    0x1.78f46e0000000p-1f,  0x1.580d560000000p-2f,  0x1.0e7cbc0000000p-1f,  0x1.005c9c0000000p-3f,
    -0x1.cb4ea00000000p-3f};
inline const std::vector<float> init_eye = {0x1.0000000000000p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
                                            0x1.0000000000000p+0f, 0x0.0p+0f};
inline const std::vector<float> init_dirac = {
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x1.0000000000000p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x1.0000000000000p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x1.0000000000000p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x1.0000000000000p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f,
    0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f, 0x0.0p+0f};
inline const std::vector<float> init_dirac_volume = {0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x1.0000000000000p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f,
                                                     0x0.0p+0f};

}  // namespace weft::goldens
