// Replaces the files that use oneDNN in a build without it: adds no candidates.
#include "weft/kernels/cpu/conv/conv.h"
#include "weft/kernels/cpu/dnnl/library.h"
#include "weft/kernels/cpu/matmul/matmul.h"

namespace weft::cpu {

std::string dnnl_name() { return "no oneDNN"; }
bool dnnl_ended() { return false; }
void add_dnnl_matmul(const MatmulArgs&, std::vector<Candidate<MatmulPlan>>&) {}
void add_dnnl_conv(const Conv2dArgs&, std::vector<Candidate<ConvPlan>>&) {}

}  // namespace weft::cpu
