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
// all keys for each query, but computes each head by itself. So before it the ranks exchange their
// parts of the sequence for heads, and after it they exchange them back (DeepSpeed-Ulysses, S. A.
// Jacobs et al., arXiv 2309.14509):
//
//   rank 0   all heads of x[0..L/2)   all_to_all   the first half of the heads of all x
//   rank 1   all heads of x[L/2..L)   --------->   the second half of the heads of all x
#pragma once

#include <cstdint>

#include "weft/comm/group/process_group.h"
#include "weft/nn/module.h"

namespace weft::parallel {

/// From now on every nn::MultiheadAttention of the module attends to the whole sequence: each of
/// the n ranks passes its part, all of equal length, and gets its part of the result. All ranks
/// call this. An attention sends one n-th of this rank's query, key, value and result to each other
/// rank, and as much in backward. For parts of unequal length all ranks get Comm. Calls take
/// is_causal, which counts from the beginning of the whole sequence; they throw Unsupported for
/// masks, and unless need_weights is false.
///
/// Each rank computes the loss of its own part. Average the gradients over the ranks, as
/// DistributedDataParallel around the module does: this gives the gradients of the mean over all
/// elements if equally many count on every rank. If not (ignore_index), take as the loss n times
/// the sum over this rank's part, divided by the number of elements that count on all ranks. The
/// program itself must handle what depends on the position within the sequence, such as the row of
/// a position embedding.
///
/// nn::Dropout draws the mask of the whole sequence and takes its part along dimension
/// `sequence_dim` of its argument, 1 for [N,L,E], 0 for [L,N,E]. So the result is that of one
/// process if the ranks' generators are equal: here they take rank 0's for the module's device;
/// seed it later as parallelize() says. The functions dropout() and dropout2d() do not do this.
/// Dropout of an attention's weights draws N heads L L numbers on each rank, and needs as many
/// bytes: avoid it for long sequences.
///
/// A clone shares the group: its calls count as the module's. Not together with parallelize() of
/// the same layers, and not within DataParallel. Throws InvalidArgument for a module without an
/// attention, for a number of heads that n does not divide, for a layer that shares its heads or
/// draws its part with other ranks already, and for types that compute an element of a sequence
/// from others or normalise over them, such as Conv1d, LSTM and BatchNorm1d.
void context_parallel(const nn::ModuleBase& module, comm::ProcessGroup& group,
                      std::int64_t sequence_dim = 1);

/// This rank's part of x, which is cut along `dim` into n equal parts. Throws Shape if n does not
/// divide the size.
Tensor part_of_sequence(const Tensor& x, const comm::ProcessGroup& group, std::int64_t dim);

}  // namespace weft::parallel
