#include "tests/session/tanh_model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

constexpr int kD = kTanhWidth;
constexpr int kV = kTanhTokens;

void AddParameter(v1::Module* module, const std::string& name, std::vector<int64_t> shape,
                  double std) {
  v1::Parameter* parameter = module->add_parameters();
  parameter->set_name(name);
  for (const int64_t extent : shape) parameter->add_shape(extent);
  parameter->set_dtype("float32");
  parameter->mutable_init()->set_kind("normal");
  parameter->mutable_init()->set_std(std);
}

std::string Fqn(int block, const char* name) { return absl::StrCat("h.", block, ".", name); }

// A block's parameters as a lease gives them.
struct Views {
  const float *w, *b, *c;
};

absl::StatusOr<Views> ViewsOf(const UnitLease& lease, int block) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView w, lease.Parameter(Fqn(block, "w")));
  TESSERA_ASSIGN_OR_RETURN(const TensorView b, lease.Parameter(Fqn(block, "b")));
  TESSERA_ASSIGN_OR_RETURN(const TensorView c, lease.Parameter(Fqn(block, "c")));
  return Views{w.as<float>(), b.as<float>(), c.as<float>()};
}

bool Uses(const TanhExample& example, int block) { return block != 1 || !example.passes_h1; }

void BlockTanh(const Views& views, const TanhBatch& batch, int block, const std::vector<float>& in,
               std::vector<float>* tanhs) {
  tanhs->assign(in.size(), 0);
  for (size_t e = 0; e < batch.size(); ++e) {
    if (!Uses(batch[e], block)) continue;
    for (int i = 0; i < kD; ++i) {
      float sum = views.b[i] + (batch[e].uses_c ? views.c[i] : 0);
      for (int j = 0; j < kD; ++j) sum += views.w[i * kD + j] * in[e * kD + j];
      (*tanhs)[e * kD + i] = std::tanh(sum);
    }
  }
}

}  // namespace

v1::JobSpec TanhJob(const std::string& unshard) {
  v1::JobSpec job;
  job.set_name("tanh");
  job.set_workload("attached");
  job.set_global_batch(12);
  job.mutable_memory()->set_unshard(unshard);
  job.mutable_mesh()->set_min_workers(1);
  job.mutable_mesh()->set_max_workers(4);
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_optimizer()->set_weight_decay(0);
  job.mutable_wrap()->set_policy("class");
  job.mutable_wrap()->add_wrap_classes("Block");
  job.mutable_wrap()->set_shard_align_bytes(16);  // so that every rank has a part of every unit
  v1::Module* root = job.mutable_model()->mutable_spec()->mutable_root();
  root->set_class_name("Tanh");
  v1::Module* emb = root->add_children();
  emb->set_name("emb");
  AddParameter(emb, "weight", {kV, kD}, 0.5);
  v1::Module* blocks = root->add_children();
  blocks->set_name("h");
  for (int block = 0; block < kTanhBlocks; ++block) {
    v1::Module* child = blocks->add_children();
    child->set_name(absl::StrCat(block));
    child->set_class_name("Block");
    AddParameter(child, "w", {kD, kD}, 0.5);
    AddParameter(child, "b", {kD}, 0.2);
    AddParameter(child, "c", {kD}, 0.2);
  }
  v1::Module* head = root->add_children();
  head->set_name("head");
  AddParameter(head, "weight", {kV, kD}, 0.5);
  head->mutable_parameters(0)->set_tied_to("emb.weight");
  return job;
}

absl::StatusOr<double> TanhRank::Forward(const TanhBatch& batch, Phase phase, Tape* tape) {
  TESSERA_ASSIGN_OR_RETURN(const int root, session_.FindUnit(""));
  TESSERA_ASSIGN_OR_RETURN(const UnitLease root_lease, session_.Unshard(root, phase));
  TESSERA_ASSIGN_OR_RETURN(const TensorView emb, root_lease.Parameter("emb.weight"));
  TESSERA_ASSIGN_OR_RETURN(const TensorView head, root_lease.Parameter("head.weight"));
  const size_t n = batch.size();
  tape->batch = batch;
  tape->inputs.assign(kTanhBlocks + 1, std::vector<float>(n * kD));
  tape->tanhs.resize(kTanhBlocks);
  for (size_t e = 0; e < n; ++e) {
    std::copy_n(emb.as<float>() + batch[e].token * kD, kD, tape->inputs[0].data() + e * kD);
  }
  for (int block = 0; block < kTanhBlocks; ++block) {
    TESSERA_ASSIGN_OR_RETURN(const int unit, session_.FindUnit(absl::StrCat("h.", block)));
    TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session_.Unshard(unit, phase));
    TESSERA_ASSIGN_OR_RETURN(const Views views, ViewsOf(lease, block));
    BlockTanh(views, batch, block, tape->inputs[block], &tape->tanhs[block]);
    for (size_t i = 0; i < n * kD; ++i) {
      tape->inputs[block + 1][i] = tape->inputs[block][i] + tape->tanhs[block][i];
    }
  }
  tape->probabilities.resize(n * kV);
  double loss = 0;
  for (size_t e = 0; e < n; ++e) {
    float* p = tape->probabilities.data() + e * kV;
    float total = 0;
    for (int v = 0; v < kV; ++v) {
      float logit = 0;
      for (int i = 0; i < kD; ++i) {
        logit += head.as<float>()[v * kD + i] * tape->inputs[kTanhBlocks][e * kD + i];
      }
      total += p[v] = std::exp(logit);
    }
    for (int v = 0; v < kV; ++v) p[v] /= total;
    loss -= std::log(p[batch[e].target]);
  }
  return loss;
}

absl::Status TanhRank::AddGradient(int unit, const std::string& fqn,
                                   const std::vector<float>& gradient) {
  TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, session_.GradientView(unit, fqn));
  float* into = slot.view.as<float>();
  for (size_t i = 0; i < gradient.size(); ++i) {
    into[i] = slot.accumulate ? into[i] + gradient[i] : gradient[i];
  }
  return absl::OkStatus();
}

absl::Status TanhRank::Backward(std::vector<Tape> tapes, const BackwardOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const int root, session_.FindUnit(""));
  TESSERA_ASSIGN_OR_RETURN(const UnitLease root_lease, session_.Unshard(root, Phase::kBackward));
  TESSERA_ASSIGN_OR_RETURN(const TensorView head, root_lease.Parameter("head.weight"));
  std::vector<std::vector<float>> dx;
  std::vector<float> dhead(kV * kD), demb(kV * kD);
  for (const Tape& tape : tapes) {
    const size_t n = tape.batch.size();
    dx.emplace_back(n * kD);
    for (size_t e = 0; e < n; ++e) {
      for (int v = 0; v < kV; ++v) {
        const float dlogit = (tape.probabilities[e * kV + v] - (v == tape.batch[e].target)) *
                             options.scale / static_cast<float>(n);
        for (int i = 0; i < kD; ++i) {
          dhead[v * kD + i] += dlogit * tape.inputs[kTanhBlocks][e * kD + i];
          dx.back()[e * kD + i] += dlogit * head.as<float>()[v * kD + i];
        }
      }
    }
  }
  TESSERA_RETURN_IF_ERROR(AddGradient(root, "head.weight", dhead));
  int late = -1;
  for (int block = kTanhBlocks - 1; block >= 0; --block) {
    TESSERA_RETURN_IF_ERROR(BackwardBlock(block, tapes, dx, options.recompute));
    TESSERA_ASSIGN_OR_RETURN(const int unit, session_.FindUnit(absl::StrCat("h.", block)));
    if (options.reduce_late && block == kTanhBlocks - 1) {
      late = unit;
      continue;
    }
    if (late >= 0) TESSERA_RETURN_IF_ERROR(session_.Reduce(std::exchange(late, -1)));
    TESSERA_RETURN_IF_ERROR(session_.Reduce(unit));
  }
  for (size_t t = 0; t < tapes.size(); ++t) {
    for (size_t e = 0; e < tapes[t].batch.size(); ++e) {
      for (int i = 0; i < kD; ++i) demb[tapes[t].batch[e].token * kD + i] += dx[t][e * kD + i];
    }
  }
  TESSERA_RETURN_IF_ERROR(AddGradient(root, "emb.weight", demb));
  return session_.Reduce(root);
}

absl::Status TanhRank::BackwardBlock(int block, std::vector<Tape>& tapes,
                                     std::vector<std::vector<float>>& dx, Recompute recompute) {
  TESSERA_ASSIGN_OR_RETURN(const int unit, session_.FindUnit(absl::StrCat("h.", block)));
  const bool around = recompute == Recompute::kAroundBackward;
  TESSERA_ASSIGN_OR_RETURN(const UnitLease lease,
                           session_.Unshard(unit, around ? Phase::kRecompute : Phase::kBackward));
  TESSERA_ASSIGN_OR_RETURN(const Views views, ViewsOf(lease, block));
  if (recompute != Recompute::kNo) {
    TESSERA_ASSIGN_OR_RETURN(const UnitLease second,
                             session_.Unshard(unit, around ? Phase::kBackward : Phase::kRecompute));
    TESSERA_ASSIGN_OR_RETURN(const Views again, ViewsOf(second, block));
    for (Tape& tape : tapes) {
      tape.tanhs[block].clear();
      BlockTanh(again, tape.batch, block, tape.inputs[block], &tape.tanhs[block]);
    }
  }  // the second use ends; the first goes on
  std::vector<float> dw(kD * kD), db(kD), dc(kD);
  bool used = false, used_c = false;
  for (size_t t = 0; t < tapes.size(); ++t) {
    for (size_t e = 0; e < tapes[t].batch.size(); ++e) {
      if (!Uses(tapes[t].batch[e], block)) continue;
      used = true;
      used_c = used_c || tapes[t].batch[e].uses_c;
      const float* x = tapes[t].inputs[block].data() + e * kD;
      const float* y = tapes[t].tanhs[block].data() + e * kD;
      float dsum[kD];
      for (int i = 0; i < kD; ++i) dsum[i] = dx[t][e * kD + i] * (1 - y[i] * y[i]);
      for (int i = 0; i < kD; ++i) {
        db[i] += dsum[i];
        if (tapes[t].batch[e].uses_c) dc[i] += dsum[i];
        for (int j = 0; j < kD; ++j) {
          dw[i * kD + j] += dsum[i] * x[j];
          dx[t][e * kD + j] += dsum[i] * views.w[i * kD + j];
        }
      }
    }
  }
  if (used) TESSERA_RETURN_IF_ERROR(AddGradient(unit, Fqn(block, "w"), dw));
  if (used) TESSERA_RETURN_IF_ERROR(AddGradient(unit, Fqn(block, "b"), db));
  if (used_c) TESSERA_RETURN_IF_ERROR(AddGradient(unit, Fqn(block, "c"), dc));
  return absl::OkStatus();
}

absl::StatusOr<TanhValues> TanhSummonAll(Session& session) {
  TanhValues values;
  for (int unit = 0; unit < session.plan().units_size(); ++unit) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<SummonedParameter> all, session.SummonUnit(unit));
    for (const SummonedParameter& parameter : all) {
      const float* begin = reinterpret_cast<const float*>(parameter.bytes.data());
      values[parameter.fqn].assign(begin, begin + parameter.bytes.size() / sizeof(float));
    }
  }
  return values;
}

double TanhLoss(const TanhValues& values, const TanhBatch& batch) {
  const std::vector<double>& emb = values.at("emb.weight");
  const std::vector<double>* parameters[kTanhBlocks][3];
  for (int block = 0; block < kTanhBlocks; ++block) {
    for (int i = 0; i < 3; ++i) {
      parameters[block][i] = &values.at(absl::StrCat("h.", block,
                                                     i == 0   ? ".w"
                                                     : i == 1 ? ".b"
                                                              : ".c"));
    }
  }
  double loss = 0;
  for (const TanhExample& example : batch) {
    std::vector<double> x(emb.begin() + example.token * kD, emb.begin() + (example.token + 1) * kD);
    for (int block = 0; block < kTanhBlocks; ++block) {
      if (example.passes_h1 && block == 1) continue;
      const auto& [w, b, c] = parameters[block];
      std::vector<double> y = x;
      for (int row = 0; row < kD; ++row) {
        double inside = (*b)[row] + (example.uses_c ? (*c)[row] : 0);
        for (int column = 0; column < kD; ++column) {
          inside += (*w)[row * kD + column] * x[column];
        }
        y[row] += std::tanh(inside);
      }
      x = y;
    }
    double sum = 0, chosen = 0;
    for (int token = 0; token < kV; ++token) {
      double logit = 0;
      for (int i = 0; i < kD; ++i) logit += x[i] * emb[token * kD + i];
      sum += std::exp(logit);
      if (token == example.target) chosen = logit;
    }
    loss += std::log(sum) - chosen;
  }
  return loss / static_cast<double>(batch.size());
}

TanhValues TanhTrain(TanhValues values, int64_t steps, double learning_rate,
                     const std::function<double(const TanhValues&, int64_t step)>& loss) {
  // Central differences: the error is of the order of h^2, and of 1e-16 / h.
  constexpr double kH = 1e-5;
  for (int64_t step = 1; step <= steps; ++step) {
    TanhValues next = values;
    for (auto& [fqn, parameter] : values) {
      for (size_t i = 0; i < parameter.size(); ++i) {
        const double kept = parameter[i];
        parameter[i] = kept + kH;
        const double up = loss(values, step);
        parameter[i] = kept - kH;
        const double down = loss(values, step);
        parameter[i] = kept;
        next[fqn][i] -= learning_rate * (up - down) / (2 * kH);
      }
    }
    values = std::move(next);
  }
  return values;
}

}  // namespace tessera
