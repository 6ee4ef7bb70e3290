#include "serve/openai/options.h"

#include "serve/openai/constraints.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

namespace tally::serve::openai {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr size_t kUserBytesMax = 256;

// Out of float's range stays out of range, as infinity.
float to_float(double v) {
  if (std::abs(v) > static_cast<double>(std::numeric_limits<float>::max()))
    return v > 0 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
  return static_cast<float>(v);
}

void read_float(Fields& fields, std::string_view name, float& out) {
  if (const auto v = fields.get_number(name)) out = to_float(*v);
}

void not_built(Fields& fields, std::string_view name) {
  fields.fail(Code::kNotSupported, name, std::string(name) + " is not supported yet with this value.");
}

void read_stop(Fields& fields, Options& out) {
  const Json* stop = fields.find("stop");
  if (!stop) return;
  if (const auto* one = stop->as<std::string>()) {
    out.stop = {*one};
  } else if (const auto* list = stop->as<JsonArray>()) {
    if (list->size() > kStopMax) return fields.invalid("stop", "stop holds more than 16 strings.");
    for (const Json& item : *list) {
      if (!item.as<std::string>())
        return fields.invalid("stop", "stop must be a string or an array of strings.");
      out.stop.push_back(*item.as<std::string>());
    }
  } else {
    return fields.invalid("stop", "stop must be a string or an array of strings.");
  }
  for (const std::string& text : out.stop)
    if (text.empty() || text.size() > kStopBytesMax)
      return fields.invalid("stop", "Each stop string must have 1 to 256 bytes.");
}

void read_bias(Fields& fields, size_t vocab_size, Options& out) {
  const JsonObject* bias = fields.get_object("logit_bias");
  if (!bias) return;
  if (bias->size() > sample::kLogitBiasMax)
    return fields.invalid("logit_bias", "logit_bias holds more than 1024 entries.");
  for (const auto& [key, value] : *bias) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 ||
        static_cast<uint64_t>(id) >= vocab_size)
      return fields.invalid("logit_bias", "The key \"" + echo(key) +
                                              "\" of logit_bias is not a token id below " +
                                              std::to_string(vocab_size) + ".");
    const auto* real = value.as<double>();
    const auto* whole = value.as<int64_t>();
    const double v = real    ? *real
                     : whole ? static_cast<double>(*whole)
                             : std::numeric_limits<double>::infinity();
    if (!(v >= -100 && v <= 100))
      return fields.invalid("logit_bias", "A value of logit_bias is not a number from -100 to 100.");
    out.params.bias.push_back({static_cast<TokenId>(id), to_float(v)});
  }
}

// What is told of the prompt itself. A chat's prompt is the template's, and no text of an answer.
void read_prompt_part(Fields& fields, Route route, Options& out) {
  out.choices.echo = fields.get_bool("echo").value_or(false);
  if (out.choices.echo && route == Route::kChat)
    fields.invalid("echo", "echo is for text completions; a chat has prompt_logprobs.");
  const auto k = fields.get_int("prompt_logprobs", 0, sample::kLogprobsMax);
  if (!k) return;
  out.choices.prompt_logprobs = static_cast<int32_t>(*k);
  if (out.stream)
    fields.invalid("prompt_logprobs", "prompt_logprobs cannot be streamed; echo with logprobs can.");
}

// max_tokens is 0 where the prompt alone is told.
void read_lengths(Fields& fields, Route route, Options& out) {
  const auto max_tokens = fields.get_int("max_tokens", out.choices.echo ? 0 : 1, kInt32Max);
  out.choices.prompt_only = max_tokens == 0;
  const auto completion =
      route == Route::kChat ? fields.get_int("max_completion_tokens", 1, kInt32Max) : std::nullopt;
  out.max_tokens = static_cast<uint32_t>(completion.value_or(max_tokens.value_or(0)));
  const auto min_tokens = fields.get_int("min_tokens", 0, kInt32Max);
  out.params.min_tokens = static_cast<uint32_t>(min_tokens.value_or(0));
  const bool is_limited = out.max_tokens > 0 || out.choices.prompt_only;
  if (is_limited && out.params.min_tokens > out.max_tokens)
    fields.invalid("min_tokens", "min_tokens is larger than max_tokens.");
}

void read_logprobs(Fields& fields, Route route, Options& out) {
  if (route == Route::kCompletion) {
    if (const auto k = fields.get_int("logprobs", 0, sample::kLogprobsMax))
      out.params.logprobs = static_cast<int32_t>(*k);
    return;
  }
  const bool wanted = fields.get_bool("logprobs").value_or(false);
  const auto top = fields.get_int("top_logprobs", 0, sample::kLogprobsMax);
  if (top && !wanted) return fields.invalid("top_logprobs", "top_logprobs needs logprobs: true.");
  if (wanted) out.params.logprobs = static_cast<int32_t>(top.value_or(0));
}

void read_stream(Fields& fields, Options& out) {
  out.stream = fields.get_bool("stream").value_or(false);
  const JsonObject* options = fields.get_object("stream_options");
  if (!options) return;
  if (!out.stream) return fields.invalid("stream_options", "stream_options needs stream: true.");
  Fields inner(*options, "stream_options.");
  out.include_usage = inner.get_bool("include_usage").value_or(false);
  out.include_tally = inner.get_bool("include_tally").value_or(false);
  if (inner.error()) fields.fail(inner.error()->code, inner.error()->param, inner.error()->message);
}

void read_sampling(Fields& fields, size_t vocab_size, Options& out) {
  sample::Params& p = out.params;
  read_float(fields, "temperature", p.temperature);
  read_float(fields, "top_p", p.top_p);
  read_float(fields, "min_p", p.min_p);
  read_float(fields, "repetition_penalty", p.penalties.repetition);
  read_float(fields, "presence_penalty", p.penalties.presence);
  read_float(fields, "frequency_penalty", p.penalties.frequency);
  p.top_k = static_cast<int32_t>(fields.get_int("top_k", -1, kInt32Max).value_or(0));
  p.ignore_eos = fields.get_bool("ignore_eos").value_or(false);
  if (const auto seed = fields.get_int("seed", 0, std::numeric_limits<int64_t>::max())) {
    p.seed = static_cast<uint64_t>(*seed);
    out.has_seed = true;
  }
  if (const JsonArray* ids = fields.get_array("stop_token_ids")) {
    if (ids->size() > sample::kStopIdsMax)
      return fields.invalid("stop_token_ids", "stop_token_ids holds more than 64 ids.");
    p.stop_ids = read_ids(fields, *ids, "stop_token_ids", vocab_size);
    std::ranges::sort(p.stop_ids);
    p.stop_ids.erase(std::ranges::unique(p.stop_ids).begin(), p.stop_ids.end());
  }
}

// What steers the beams: temperature, top_p, top_k, min_p and seed mean nothing to them, as in vLLM. What
// would mean something and is not done is refused.
void read_beams(Fields& fields, Options& out) {
  const bool wanted = fields.get_bool("use_beam_search").value_or(false);
  engine::BeamSearch beams;
  beams.width = out.choices.best_of;
  if (const auto penalty = fields.get_number("length_penalty")) {
    beams.length_penalty = to_float(*penalty);
    if (!(std::abs(beams.length_penalty) <= kLengthPenaltyMax))
      return fields.invalid("length_penalty", "length_penalty must be a number from -5 to 5.");
  }
  if (const Json* early = fields.find("early_stopping")) {
    const auto* flag = early->as<bool>();
    const auto* word = early->as<std::string>();
    if (!flag && !(word && *word == "never"))
      return fields.invalid("early_stopping", "early_stopping must be true, false or \"never\".");
    beams.early_stopping = !flag   ? sample::EarlyStop::kLongest
                           : *flag ? sample::EarlyStop::kWidth
                                   : sample::EarlyStop::kPresent;
  }
  if (!wanted) {
    if (beams.length_penalty != 1)
      fields.invalid("length_penalty", "length_penalty needs use_beam_search: true.");
    if (beams.early_stopping != sample::EarlyStop::kPresent)
      fields.invalid("early_stopping", "early_stopping needs use_beam_search: true.");
    return;
  }
  if (out.stream)
    fields.invalid("stream", "A beam search cannot be streamed: its answers are known at the end.");
  if (out.choices.prompt_only)
    fields.invalid("max_tokens", "A beam search generates: max_tokens must be at least 1.");
  if (!out.stop.empty())
    fields.invalid("stop", "stop does not go with use_beam_search; stop_token_ids does.");
  if (!out.params.bias.empty()) fields.invalid("logit_bias", "logit_bias does not go with use_beam_search.");
  const sample::Penalties& p = out.params.penalties;
  if (p.active()) {
    const char* name = p.repetition != 1 ? "repetition_penalty"
                       : p.presence != 0 ? "presence_penalty"
                                         : "frequency_penalty";
    fields.invalid(name, std::string(name) + " does not go with use_beam_search.");
  }
  out.choices.beams = beams;
}

void read_choices(Fields& fields, Options& out) {
  const auto n = fields.get_int("n", 1, kChoicesMax);
  const auto best_of = fields.get_int("best_of", 1, kChoicesMax);
  out.choices.n = static_cast<uint32_t>(n.value_or(1));
  out.choices.best_of = static_cast<uint32_t>(best_of.value_or(out.choices.n));
  if (out.choices.best_of < out.choices.n) fields.invalid("best_of", "best_of is smaller than n.");
  read_beams(fields, out);
  if (out.stream && out.choices.best_of > out.choices.n)
    fields.invalid("best_of",
                   "best_of above n cannot be streamed: which choices are best is known at the end.");
}

// A constraint is never dropped silently.
void refuse_older_constraints(Fields& fields) {
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar"})
    if (fields.find(name))
      fields.fail(Code::kNotSupported, name,
                  std::string(name) + " is not supported: use structured_outputs.");
}

void read_queueing(Fields& fields, Options& out) {
  out.priority = static_cast<int32_t>(fields.get_int("priority", -100, 100).value_or(0));
  const std::string* salt = fields.get_string("cache_salt");
  if (!salt) return;
  const bool legal =
      !salt->empty() && salt->size() <= 64 && std::all_of(salt->begin(), salt->end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
               c == '-';
      });
  if (!legal) fields.invalid("cache_salt", "cache_salt must be 1 to 64 of A-Z a-z 0-9 _ -.");
  out.cache_salt = *salt;
}

void refuse_typical(Fields& fields) {
  if (const auto p = fields.get_number("typical_p")) {
    if (!(*p >= 0 && *p <= 1)) fields.invalid("typical_p", "typical_p must be a number from 0 to 1.");
    if (*p != 1) not_built(fields, "typical_p");
  }
}

}  // namespace

std::vector<TokenId> read_ids(Fields& fields, const JsonArray& list, std::string_view param,
                              size_t vocab_size) {
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t* id = list[i].as<int64_t>();
    if (!id || *id < 0 || static_cast<uint64_t>(*id) >= vocab_size) {
      const std::string name = std::string(param) + "[" + std::to_string(i) + "]";
      fields.invalid(name, name + " is not a token id from 0 to " + std::to_string(vocab_size - 1) + ".");
      return ids;
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

void read_options(Fields& fields, Route route, size_t vocab_size, Options& out) {
  const std::string* model = fields.get_string("model");
  if (model)
    out.model = *model;
  else
    fields.fail(Code::kMissingParameter, "model", "The field model is missing.");
  read_sampling(fields, vocab_size, out);
  read_stream(fields, out);
  read_prompt_part(fields, route, out);
  read_lengths(fields, route, out);
  read_stop(fields, out);
  read_bias(fields, vocab_size, out);
  read_logprobs(fields, route, out);
  if (const std::string* user = fields.get_string("user"); user && user->size() > kUserBytesMax)
    fields.invalid("user", "user is longer than 256 bytes.");
  if (const auto wrong = sample::validate(out.params, vocab_size))
    fields.invalid(wrong->param, wrong->message);
  read_choices(fields, out);
  read_constraint(fields, out);
  refuse_older_constraints(fields);
  read_queueing(fields, out);
  refuse_typical(fields);
}

}  // namespace tally::serve::openai
