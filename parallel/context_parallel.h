// context_parallel: each rank has a part of every sequence, for sequences that are too long for
// one.
//
//   parallel::context_parallel(model, *mesh["cp"]);
//   parallel::DistributedDataParallel ddp(model, mesh[{"dp", "cp"}]);
//   ...
//   const Tensor x = parallel::part_of_sequence(text, *mesh["cp"], 1);  // and of the labels
//   nn::cross_entropy(ddp(x, offset), ...).backward();
//
// All layers but attention must compute each element of a sequence by itself. An attention needs
// all keys for each query, but each of its heads by itself: so the ranks exchange parts of the
// sequence for heads before it, and back after it (DeepSpeed-Ulysses, S. A. Jacobs et al., arXiv
// 2309.14509):
//
//   rank 0   all heads of x[0..L/2)   all_to_all   the first half of the heads of all x
//   rank 1   all heads of x[L/2..L)   --------->   the second half of the heads of all x
#pragma once

#include <cstdint>

#include "weft/comm/group/process_group.h"
#include "weft/nn/module.h"

namespace weft::parallel {

/// From now on every nn::MultiheadAttention of the module attends to the whole sequence, of which
/// each of the n ranks gives a part of equal length, and gets its part of the result. All ranks
/// call it. An attention sends an n-th of this rank's query, key, value and result to each other
/// rank, in backward the same. They get Comm for parts of unequal length. Calls take is_causal,
/// which counts from the beginning of the whole sequence; they throw Unsupported for masks, and
/// unless need_weights is false.
///
/// Each rank has a loss of its own part, and gradients of all that it computes: to be averaged over
/// the ranks, as DistributedDataParallel around the module does. That is the mean over all elements
/// if all ranks have equally many; where some do not count (ignore_index), take the sum times n,
/// divided by their number on all ranks. What depends on the place within a sequence, such as the
/// number of an embedding's row, is the program's own.
///
/// nn::Dropout draws the mask of the whole sequence and takes its part along dimension
/// `sequence_dim` of its argument, 1 for [N,L,E], 0 for [L,N,E]. So the result is that of one
/// process if the ranks' generators are equal: here they take rank 0's for the module's device;
/// seed that later as parallelize() says. The functions dropout() and dropout2d() know nothing of
/// it. Dropout of an attention's weights draws N heads L L numbers on each rank, and needs as many
/// bytes: for long sequences do without.
///
/// A clone shares the group: its calls count as the module's. Not together with parallelize() of
/// the same layers, and not within DataParallel. Throws InvalidArgument for a module without an
/// attention, for a number of heads that n does not divide, for a layer that shares its heads or
/// draws its part with other ranks already, and for types that compute an element of a sequence
/// from others or normalise over them, such as Conv1d, LSTM and BatchNorm1d.
void context_parallel(const nn::ModuleBase& module, comm::ProcessGroup& group,
                      std::int64_t sequence_dim = 1);

/// Of n equal parts of x along `dim` that of this rank. Throws Shape if n does not divide the size.
Tensor part_of_sequence(const Tensor& x, const comm::ProcessGroup& group, std::int64_t dim);

}  // namespace weft::parallel
