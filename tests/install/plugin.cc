// A plugin that uses weft, opened by a program and by a Python process: dlopen.c and dlopen.py.
#include "weft/weft.h"

using namespace weft;

// 0 if three steps of training lower the loss.
extern "C" int plugin_train() try {
  manual_seed(0);
  nn::Linear layer(4, 1);
  optim::Adam adam(layer.parameters(), {.lr = 0.1});
  const Tensor x = randn({16, 4});
  double first = 0, last = 0;
  for (int step = 0; step < 3; ++step) {
    adam.zero_grad();
    const Tensor loss = nn::mse_loss(layer(x), x.sum({1}, true));
    loss.backward();
    adam.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  return last < first ? 0 : 1;
} catch (const Error&) {
  return 2;
}

// The error text of a tensor on cuda:0; empty if there is such a device.
extern "C" const char* plugin_cuda() {
  thread_local std::string text;
  try {
    zeros({1}, Device("cuda:0"));
    text.clear();
  } catch (const Error& error) {
    text = error.what();
  }
  return text.c_str();
}
