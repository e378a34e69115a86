// Stands in for dnnl_*.cc in a build without oneDNN: no candidates of its own.
#include "weft/kernels/cpu/heavy_internal.h"

namespace weft::cpu {

std::string dnnl_name() { return "no oneDNN"; }
bool dnnl_ended() { return false; }
void add_dnnl_matmul(const MatmulArgs&, std::vector<Candidate<MatmulPlan>>&) {}
void add_dnnl_conv(const Conv2dArgs&, std::vector<Candidate<ConvPlan>>&) {}

}  // namespace weft::cpu
