// Checks that all ranks have built the same model.
#pragma once

#include <string>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/nn/module.h"
#include "weft/parallel/gradient_buckets.h"

namespace weft::parallel {

/// Compares `text`, one line of options and one for each tensor, with rank 0's. If a rank's text
/// differs, throws InvalidArgument on every rank: "rank 2 PROBLEM than rank 0: it has ..., rank 0
/// has ...", for the first such rank and its first difference, followed by the remedy.
void check_same_lines(comm::ProcessGroup& group, const char* op, const std::string& text,
                      const char* problem, const char* remedy);

/// For check_same_lines(): a line for each parameter and buffer with name, shape, dtype, strides,
/// whether it is trained, and which part of it this rank has. with_strides = false leaves out
/// strides and cuts, for ranks that exchange no tensors of it.
std::string lines_of_model(const nn::ModuleBase& module, bool with_strides = true);

/// Compares with rank 0: options (any text, on one line), then for each parameter and buffer the
/// name, shape, dtype, strides and whether it is trained. Throws InvalidArgument on every rank when
/// one differs, naming the first such rank and the first difference.
void check_same_model(comm::ProcessGroup& group, const nn::ModuleBase& module,
                      const std::string& options);

/// Throws InvalidArgument for a parameter that requires a gradient and is not among `wrapped`: one
/// that was added since then.
void check_none_added(const nn::ModuleBase& module,
                      const std::vector<GradientBuckets::Parameter>& wrapped);

/// Finds a rank that was given no replicas though others name it as one of theirs: it would never
/// send them a message. A rank with replicas writes a note of its call (`what` it does, and
/// `lines`) into the store of the run, and waits for the notes of its replicas before it waits for
/// their messages: up to five seconds, or half the group's timeout if that is less. A rank without
/// replicas leaves a note, too. If such a note is equal to this rank's, and none with replicas
/// follows within half the timeout, this throws InvalidArgument: "rank 3 of the run WHAT with no
/// replicas, and rank 1, ...". `replicas` may be null.
void check_replicas(comm::ProcessGroup& group, comm::ProcessGroup* replicas, const char* op,
                    const std::string& what, const std::string& lines);

/// Gives this rank's generator for the module's device the state of rank 0's. All ranks call it.
void share_generator(comm::ProcessGroup& group, const nn::ModuleBase& module);

}  // namespace weft::parallel
