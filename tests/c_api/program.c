#include "weft/tests/c_api/program.h"

#include "weft/weft_c.h"

static void ignore(weft_tensor* tensor) { (void)tensor; }

float sum_by_pair(const char* library) {
  float values[2] = {1, 2};
  int64_t shape[1] = {1};
  weft_tensor a = {1, 0, NULL, ignore, WEFT_READ_ONLY, NULL, WEFT_CPU, 0, 1, WEFT_FLOAT, 32, 1,
                   NULL, NULL, 0};
  weft_tensor b;
  weft_tensor* inputs[2];
  weft_tensor* outputs[2];
  size_t count = 2;
  float sum;
  weft_model* model;
  a.data = &values[0];
  a.shape = shape;
  b = a;
  b.data = &values[1];
  inputs[0] = &a;
  inputs[1] = &b;
  if (weft_c_version() != WEFT_C_VERSION) return -1;
  model = weft_model_open(library, "pair", "cpu");
  if (!model) return -2;
  if (weft_model_forward(model, inputs, 2, outputs, &count) || count != 2) return -3;
  weft_model_free(model);
  sum = *(const float*)((const char*)outputs[0]->data + outputs[0]->byte_offset);
  outputs[0]->deleter(outputs[0]);
  outputs[1]->deleter(outputs[1]);
  return sum;
}
