// What other files need from oneDNN. none.cc implements it in a build without oneDNN.
#pragma once

#include <string>

namespace weft::cpu {

/// "oneDNN 2.6.0 isa 15": the version and the instruction set that oneDNN may use.
std::string dnnl_name();
/// Whether the process is ending and oneDNN's static objects may be destroyed: its plans must not
/// run.
bool dnnl_ended();

}  // namespace weft::cpu
