// The gradient before a convolution's relu, with the bias's.
#include "weft/kernels/conv.h"
#include "weft/kernels/functors.h"
#include "weft/kernels/reference/elements.h"

namespace weft::reference {

void relu_backward(const Stream& stream, const ReluBackwardArgs& args, void*) {
  for_floating("relu_backward", stream, args.y.dtype, [&]<class T>() {
    const Elements<T> grad_y(args.grad_y), y(args.y), before(args.before), bias(args.bias);
    Sums channel(args.bias.shape);
    for_each_position(args.y.shape, [&](const Dims& at) {
      before.set(functor::Relu{}.bwd(grad_y(at), y(at)), at);
      channel.add(before(at), at[1]);
    });
    for (std::int64_t k = 0; k < args.bias.shape[0]; ++k) bias.set(channel(k), k);
  });
}

}  // namespace weft::reference
