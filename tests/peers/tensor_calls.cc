// Creation, views, copies, reductions, indexing and matrix products.
#include <optional>

#include "weft/autograd/ops.h"
#include "weft/tensor/multinomial.h"
#include "weft/tests/peers/calls.h"

namespace weft::peers {
namespace {

using Tensors = std::vector<Tensor>;

void add_creation(Operations& table) {
  table["arange"] = [](const Call& c) -> Tensors {
    return {arange(c.number("start"), c.number("end"), c.number("step"), c.dtype("dtype"))};
  };
  table["eye"] = [](const Call& c) -> Tensors {
    const std::int64_t n = c.integer("n");
    return {eye(n, c.integer("m", n), c.dtype("dtype"))};
  };
  table["full"] = [](const Call& c) -> Tensors {
    return {full(c.dims("shape"), c.number("value"), c.dtype("dtype"))};
  };
  table["linspace"] = [](const Call& c) -> Tensors {
    return {linspace(c.number("start"), c.number("end"), c.integer("steps"), c.dtype("dtype"))};
  };
  table["empty"] = [](const Call& c) -> Tensors {
    return {empty(c.dims("shape"), c.dtype("dtype"))};
  };
  table["empty_like"] = [](const Call& c) -> Tensors { return {empty_like(c.operand(0))}; };
  table["full_like"] = [](const Call& c) -> Tensors {
    return {full_like(c.operand(0), c.number("value"))};
  };
  table["rand_like"] = [](const Call& c) -> Tensors { return {rand_like(c.operand(0))}; };
  table["randn_like"] = [](const Call& c) -> Tensors { return {randn_like(c.operand(0))}; };
  table["normal"] = [](const Call& c) -> Tensors {
    if (c.in.size() > 1) return {normal(c.in[0], c.in[1])};
    if (c.has("mean") && c.has("std")) {
      return {normal(c.number("mean"), c.number("std"), c.dims("shape"), c.dtype("dtype"))};
    }
    return {c.has("mean") ? normal(c.number("mean"), c.operand(0))
                          : normal(c.operand(0), c.number("std", 1))};
  };
  table["normal_"] = [](const Call& c) -> Tensors {
    return {raw::normal_(c.operand(0), c.number("mean"), c.number("std"))};
  };
  table["multinomial"] = [](const Call& c) -> Tensors {
    return {multinomial(c.operand(0), c.integer("num_samples"), c.flag("replacement"))};
  };
  table["zeros_like"] = [](const Call& c) -> Tensors { return {zeros_like(c.operand(0))}; };
  table["ones_like"] = [](const Call& c) -> Tensors { return {ones_like(c.operand(0))}; };
}

void add_views(Operations& table) {
  table["reshape"] = [](const Call& c) -> Tensors { return {c.in[0].reshape(c.dims("shape"))}; };
  table["flatten"] = [](const Call& c) -> Tensors {
    return {c.in[0].flatten(c.dim("start"), c.dim("end"))};
  };
  table["unflatten"] = [](const Call& c) -> Tensors {
    return {c.in[0].unflatten(c.dim("dim"), c.dims("shape"))};
  };
  table["t"] = [](const Call& c) -> Tensors { return {c.in[0].t()}; };
  table["transpose"] = [](const Call& c) -> Tensors {
    return {c.in[0].transpose(c.dim("dim0"), c.dim("dim1"))};
  };
  table["permute"] = [](const Call& c) -> Tensors { return {c.in[0].permute(c.dims("dims"))}; };
  table["slice"] = [](const Call& c) -> Tensors {
    return {c.in[0].slice(c.dim("dim"), c.integer("start"), c.integer("end"), c.integer("step"))};
  };
  table["select"] = [](const Call& c) -> Tensors {
    return {c.in[0].select(c.dim("dim"), c.integer("index"))};
  };
  table["narrow"] = [](const Call& c) -> Tensors {
    return {c.in[0].narrow(c.dim("dim"), c.integer("start"), c.integer("length"))};
  };
  table["squeeze"] = [](const Call& c) -> Tensors {
    return {c.has("dim") ? c.in[0].squeeze(c.dim("dim")) : c.in[0].squeeze()};
  };
  table["unsqueeze"] = [](const Call& c) -> Tensors { return {c.in[0].unsqueeze(c.dim("dim"))}; };
  table["expand"] = [](const Call& c) -> Tensors { return {c.in[0].expand(c.dims("shape"))}; };
  table["as_strided"] = [](const Call& c) -> Tensors {
    const Tensor& x = c.in[0];
    return {as_strided(x.storage(), x.dtype(), c.dims("shape"), c.dims("strides"),
                       c.integer("offset"))};
  };
  table["chunk"] = [](const Call& c) -> Tensors {
    return chunk(c.in[0], c.dim("count"), c.dim("dim"));
  };
  table["split"] = [](const Call& c) -> Tensors {
    if (c.has("sizes")) return split(c.in[0], c.dims("sizes"), c.dim("dim"));
    return split(c.in[0], c.integer("size"), c.dim("dim"));
  };
}

void add_arrangements(Operations& table) {
  table["view"] = [](const Call& c) -> Tensors { return {c.in[0].view(c.dims("shape"))}; };
  table["diagonal"] = [](const Call& c) -> Tensors {
    return {c.in[0].diagonal(c.integer("offset"), c.dim("dim1"), c.dim("dim2"))};
  };
  table["unbind"] = [](const Call& c) -> Tensors { return unbind(c.in[0], c.dim("dim")); };
  table["meshgrid"] = [](const Call& c) -> Tensors { return meshgrid(c.in, c.text("indexing")); };
  table["diag"] = [](const Call& c) -> Tensors { return {diag(c.in[0], c.integer("diagonal"))}; };
  table["repeat_interleave"] = [](const Call& c) -> Tensors {
    std::optional<std::int64_t> dim;
    if (c.has("dim")) dim = c.integer("dim");
    if (c.in.size() > 1) return {repeat_interleave(c.in[0], c.in[1], dim)};
    return {repeat_interleave(c.in[0], c.integer("repeats"), dim)};
  };
  table["outer"] = [](const Call& c) -> Tensors { return {outer(c.operand(0), c.operand(1))}; };
  table["einsum"] = [](const Call& c) -> Tensors { return {einsum(c.text("equation"), c.in)}; };
  table["p_norm"] = [](const Call& c) -> Tensors {
    return {p_norm(c.in[0], c.number("p"), c.dims("dims"), c.flag("keepdim"))};
  };
  table["amax"] = [](const Call& c) -> Tensors {
    return {amax(c.in[0], c.dims("dims"), c.flag("keepdim"))};
  };
  table["amin"] = [](const Call& c) -> Tensors {
    return {amin(c.in[0], c.dims("dims"), c.flag("keepdim"))};
  };
  table["std_mean"] = [](const Call& c) -> Tensors {
    const auto [std, mean] =
        std_mean(c.in[0], c.dims("dims"), c.number("correction", 1), c.flag("keepdim"));
    return {std, mean};
  };
  table["var_mean"] = [](const Call& c) -> Tensors {
    const auto [var, mean] =
        var_mean(c.in[0], c.dims("dims"), c.number("correction", 1), c.flag("keepdim"));
    return {var, mean};
  };
}

void add_copies(Operations& table) {
  table["contiguous"] = [](const Call& c) -> Tensors { return {c.in[0].contiguous()}; };
  table["clone"] = [](const Call& c) -> Tensors { return {c.in[0].clone()}; };
  table["detach"] = [](const Call& c) -> Tensors { return {c.in[0].detach()}; };
  table["to"] = [](const Call& c) -> Tensors { return {c.in[0].to(c.dtype("dtype"))}; };
  table["cat"] = [](const Call& c) -> Tensors { return {cat(c.in, c.dim("dim"))}; };
  table["repeat"] = [](const Call& c) -> Tensors {
    return {repeat(c.operand(0), c.dims("counts"))};
  };
  table["flip"] = [](const Call& c) -> Tensors { return {flip(c.operand(0), c.dims("dims"))}; };
  table["roll"] = [](const Call& c) -> Tensors {
    return {roll(c.operand(0), c.integer("shift"), c.optional_integer("dim"))};
  };
  table["tril"] = [](const Call& c) -> Tensors {
    return {tril(c.operand(0), c.integer("diagonal"))};
  };
  table["triu"] = [](const Call& c) -> Tensors {
    return {triu(c.operand(0), c.integer("diagonal"))};
  };
  table["pad"] = [](const Call& c) -> Tensors {
    const std::vector<std::int64_t> pads = c.integers("pads");
    return {c.has("mode") ? pad(c.operand(0), pads, c.text("mode"))
                          : pad(c.operand(0), pads, c.number("value", 0))};
  };
  table["stack"] = [](const Call& c) -> Tensors { return {stack(c.in, c.dim("dim"))}; };
}

void add_reductions(Operations& table) {
#define REDUCTION(name)                                                   \
  table[#name] = [](const Call& c) -> Tensors {                           \
    return {weft::name(c.operand(0), c.dims("dims"), c.flag("keepdim"))}; \
  };
  REDUCTION(sum)
  REDUCTION(mean)
  REDUCTION(prod)
  REDUCTION(max)
  REDUCTION(min)
  REDUCTION(norm)
  REDUCTION(logsumexp)
  REDUCTION(all)
  REDUCTION(any)
#undef REDUCTION
  table["max_of_dim"] = [](const Call& c) -> Tensors {
    const auto [values, indices] = max_of_dim(c.operand(0), c.integer("dim"), c.flag("keepdim"));
    return {values, indices};
  };
  table["min_of_dim"] = [](const Call& c) -> Tensors {
    const auto [values, indices] = min_of_dim(c.operand(0), c.integer("dim"), c.flag("keepdim"));
    return {values, indices};
  };
  table["var"] = [](const Call& c) -> Tensors {
    return {var(c.operand(0), c.dims("dims"), c.number("correction"), c.flag("keepdim"))};
  };
  table["std"] = [](const Call& c) -> Tensors {
    return {weft::std(c.operand(0), c.dims("dims"), c.number("correction"), c.flag("keepdim"))};
  };
  table["argmax"] = [](const Call& c) -> Tensors {
    return {argmax(c.operand(0), c.optional_integer("dim"), c.flag("keepdim"))};
  };
  table["argmin"] = [](const Call& c) -> Tensors {
    return {argmin(c.operand(0), c.optional_integer("dim"), c.flag("keepdim"))};
  };
  table["sort"] = [](const Call& c) -> Tensors {
    const auto [values, indices] = sort(c.operand(0), c.dim("dim"), c.flag("descending"));
    return {values, indices};
  };
  table["argsort"] = [](const Call& c) -> Tensors {
    return {argsort(c.operand(0), c.dim("dim"), c.flag("descending"))};
  };
  table["topk"] = [](const Call& c) -> Tensors {
    const auto [values, indices] =
        topk(c.operand(0), c.integer("k"), c.dim("dim"), c.flag("largest"));
    return c.flag("with_indices") ? Tensors{values, indices} : Tensors{values};
  };
  table["median"] = [](const Call& c) -> Tensors {
    if (!c.has("dim")) return {median(c.operand(0))};
    const auto [values, indices] = median(c.operand(0), c.integer("dim"), c.flag("keepdim"));
    return c.flag("with_indices") ? Tensors{values, indices} : Tensors{values};
  };
  table["searchsorted"] = [](const Call& c) -> Tensors {
    return {searchsorted(c.operand(0), c.operand(1), c.flag("right"))};
  };
  table["bincount"] = [](const Call& c) -> Tensors {
    return {bincount(c.operand(0), c.operand(1), c.integer("minlength"))};
  };
  table["nonzero"] = [](const Call& c) -> Tensors { return {nonzero(c.operand(0))}; };
  table["unique"] = [](const Call& c) -> Tensors {
    const auto [values, inverse, counts] =
        unique(c.operand(0), true, true, true, c.optional_integer("dim"));
    return {values, inverse, counts};
  };
  table["cumsum"] = [](const Call& c) -> Tensors { return {cumsum(c.operand(0), c.dim("dim"))}; };
  table["cumprod"] = [](const Call& c) -> Tensors { return {cumprod(c.operand(0), c.dim("dim"))}; };
  table["softmax"] = [](const Call& c) -> Tensors { return {softmax(c.operand(0), c.dim("dim"))}; };
  table["log_softmax"] = [](const Call& c) -> Tensors {
    return {log_softmax(c.operand(0), c.dim("dim"))};
  };
}

void add_indexing(Operations& table) {
  table["index_select"] = [](const Call& c) -> Tensors {
    return {index_select(c.operand(0), c.dim("dim"), c.operand(1))};
  };
  table["gather"] = [](const Call& c) -> Tensors {
    return {gather(c.operand(0), c.dim("dim"), c.operand(1))};
  };
  table["one_hot"] = [](const Call& c) -> Tensors {
    return {one_hot(c.operand(0), c.integer("classes"))};
  };
  table["embedding"] = [](const Call& c) -> Tensors {
    return {embedding(c.operand(0), c.operand(1), c.optional_integer("padding_idx"))};
  };
  table["masked_fill"] = [](const Call& c) -> Tensors {
    if (c.in.size() > 2) return {masked_fill(c.in[0], c.in[1], c.in[2])};
    return {masked_fill(c.operand(0), c.operand(1), c.number("value"))};
  };
  table["masked_select"] = [](const Call& c) -> Tensors {
    return {masked_select(c.operand(0), c.operand(1))};
  };
  table["at_mask"] = [](const Call& c) -> Tensors { return {c.operand(0)[c.operand(1)]}; };
  table["index_add"] = [](const Call& c) -> Tensors {
    return {index_add(c.operand(0), c.dim("dim"), c.operand(1), c.operand(2))};
  };
  table["scatter_add"] = [](const Call& c) -> Tensors {
    return {scatter_add(c.operand(0), c.dim("dim"), c.operand(1), c.operand(2))};
  };
  table["scatter"] = [](const Call& c) -> Tensors {
    return {scatter(c.operand(0), c.dim("dim"), c.operand(1), c.operand(2))};
  };
  table["scatter_number"] = [](const Call& c) -> Tensors {
    return {scatter(c.operand(0), c.dim("dim"), c.operand(1), c.number("value"))};
  };
  table["scatter_"] = [](const Call& c) -> Tensors {
    if (c.has("value")) {
      return {c.in[0].scatter_(c.dim("dim"), c.operand(1), c.number("value"))};
    }
    return {c.in[0].scatter_(c.dim("dim"), c.operand(1), c.operand(2))};
  };
  table["index_add_"] = [](const Call& c) -> Tensors {
    return {raw::index_add_(c.operand(0), c.dim("dim"), c.operand(1), c.operand(2))};
  };
  table["scatter_add_"] = [](const Call& c) -> Tensors {
    return {raw::scatter_add_(c.operand(0), c.dim("dim"), c.operand(1), c.operand(2))};
  };
}

}  // namespace

void add_tensor(Operations& table) {
  add_creation(table);
  add_views(table);
  add_arrangements(table);
  add_copies(table);
  add_reductions(table);
  add_indexing(table);
  table["matmul"] = [](const Call& c) -> Tensors { return {matmul(c.operand(0), c.operand(1))}; };
  table["dot"] = [](const Call& c) -> Tensors { return {dot(c.operand(0), c.operand(1))}; };
  table["scaled_dot_product_attention"] = [](const Call& c) -> Tensors {
    AttentionOptions options{.attn_mask = c.operand(3),
                             .dropout_p = c.number("dropout_p", 0),
                             .is_causal = c.flag("causal")};
    if (c.has("scale")) options.scale = c.number("scale");
    return {scaled_dot_product_attention(c.operand(0), c.operand(1), c.operand(2), options)};
  };
  table["linear"] = [](const Call& c) -> Tensors {
    return {linear(c.operand(0), c.operand(1), c.operand(2))};
  };
}

}  // namespace weft::peers
