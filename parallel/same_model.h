// Checks that all ranks have built the same model.
#pragma once

#include <string>

#include "weft/comm/group/process_group.h"
#include "weft/nn/module.h"

namespace weft::parallel {

/// Compares `text`, one line of options and one for each tensor, with rank 0's. Throws
/// InvalidArgument on every rank when one differs: "rank 2 PROBLEM than rank 0: it has ..., rank 0
/// has ...", for the first such rank and its first difference, followed by the remedy.
void check_same_lines(comm::ProcessGroup& group, const char* op, const std::string& text,
                      const char* problem, const char* remedy);

/// For check_same_lines(): name, shape, dtype, strides and whether it is trained of each parameter
/// and buffer, a line each, and which part of a parameter this rank has. Ranks that exchange no
/// tensors of the module may differ in the strides, and in how it is cut.
std::string lines_of_model(const nn::ModuleBase& module, bool with_strides = true);

/// Compares with rank 0: options (any text, on one line), then name, shape, dtype, strides and
/// whether it is trained of each parameter and buffer. Throws InvalidArgument on every rank when
/// one differs, naming the first such rank and the first difference.
void check_same_model(comm::ProcessGroup& group, const nn::ModuleBase& module,
                      const std::string& options);

/// A rank that gives no replicas sends nothing to those who give it as one of theirs. So each rank
/// that gives some notes its call, `what` it does and `lines` of it, in the store of the run, and
/// looks for the notes of the others before it waits for a message of theirs: up to five seconds,
/// or half the group's timeout if that is less. One that gives none leaves a note, too: if it is
/// the same, and none with replicas comes within half the timeout, that rank should have given
/// some. Then this throws InvalidArgument: "rank 3 of the run WHAT with no replicas, and rank 1,
/// ...". `replicas` may be null.
void check_replicas(comm::ProcessGroup& group, comm::ProcessGroup* replicas, const char* op,
                    const std::string& what, const std::string& lines);

/// Gives this rank's generator for the module's device the state that rank 0's has. All ranks call
/// it.
void share_generator(comm::ProcessGroup& group, const nn::ModuleBase& module);

}  // namespace weft::parallel
