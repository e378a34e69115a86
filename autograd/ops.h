// The operations that users call, one header for each family. They are those of weft::raw, recorded
// on the tape if gradients are enabled and an operand requires one: tensor/ops.h has their
// formulas, shapes and errors. What weft::raw does not have is composed of other operations, which
// put it on the tape; its declaration says what it does.
//
// As everywhere, operands live on one device, and user mistakes throw Shape, Dtype, Device or
// InvalidArgument.
#pragma once

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/attention.h"
#include "weft/autograd/conv.h"
#include "weft/autograd/copies.h"
#include "weft/autograd/dropout.h"
#include "weft/autograd/einsum.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/interpolate.h"
#include "weft/autograd/loss.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/named_padding.h"
#include "weft/autograd/norm.h"
#include "weft/autograd/pooling.h"
#include "weft/autograd/random.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/scan.h"
#include "weft/autograd/softmax.h"
#include "weft/autograd/sorting.h"
#include "weft/autograd/unfold.h"
#include "weft/autograd/views.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tensor/tensor.h"
