#include "text/chat_builtin.h"

#include <array>

namespace tally::text {
namespace {

// Every template takes content as a string or as a list of text parts; other parts are refused.

constexpr std::string_view kChatml = R"jinja(
{%- macro text_of(content) -%}
  {%- if content is string -%}
    {{ content }}
  {%- else -%}
    {%- for part in content or [] -%}
      {%- if part.type != 'text' -%}
        {{ raise_exception('Only text content is supported') }}
      {%- endif -%}
      {{ part.text }}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
  {{ '<|im_start|>system\n' }}
  {%- if messages and messages[0].role == 'system' -%}
    {{ text_of(messages[0].content) + '\n\n' }}
  {%- endif -%}
  {{ 'You can call functions. This is what there is, a JSON object each:\n<tools>\n' }}
  {%- for tool in tools -%}
    {{ tool | tojson }}{{ '\n' }}
  {%- endfor -%}
  {{ '</tools>\nTo call one, write its name and the object of its arguments like this:\n' }}
  {{- '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call><|im_end|>\n' }}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'tool' -%}
    {{ '<|im_start|>user\n<tool_response>\n' + text_of(message.content) + '\n</tool_response><|im_end|>\n' }}
  {%- elif not (tools and loop.first and message.role == 'system') -%}
    {{ '<|im_start|>' + message.role + '\n' + text_of(message.content) }}
    {%- for call in message.tool_calls or [] -%}
      {{ '\n' if message.content or not loop.first else '' }}
      {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
      {{- call.function.arguments | tojson }}{{ '}\n</tool_call>' }}
    {%- endfor -%}
    {{ '<|im_end|>\n' }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<|im_start|>assistant\n' }}
{%- endif -%}
)jinja";

// Gemma has no system role: its text opens the first user turn.
constexpr std::string_view kGemma = R"jinja(
{%- macro text_of(content) -%}
  {%- if content is string -%}
    {{ content | trim }}
  {%- else -%}
    {%- for part in content or [] -%}
      {%- if part.type != 'text' -%}
        {{ raise_exception('Only text content is supported') }}
      {%- endif -%}
      {{ part.text | trim }}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{{ bos_token }}
{%- set ns = namespace(before='', turns=0) -%}
{%- for message in messages -%}
  {%- if message.role == 'system' or message.role == 'developer' -%}
    {%- if not loop.first -%}
      {{ raise_exception('A system message must be the first message') }}
    {%- endif -%}
    {%- set ns.before = text_of(message.content) + '\n\n' -%}
  {%- else -%}
    {%- if message.role != ('user' if ns.turns % 2 == 0 else 'assistant') -%}
      {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {%- set ns.turns = ns.turns + 1 -%}
    {{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' }}
    {{- ns.before + text_of(message.content) + '<end_of_turn>\n' }}
    {%- set ns.before = '' -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<start_of_turn>model\n' }}
{%- endif -%}
)jinja";

constexpr std::string_view kLlama3 = R"jinja(
{%- macro text_of(content) -%}
  {%- if content is string -%}
    {{ content | trim }}
  {%- else -%}
    {%- for part in content or [] -%}
      {%- if part.type != 'text' -%}
        {{ raise_exception('Only text content is supported') }}
      {%- endif -%}
      {{ part.text }}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- macro turn(role, text) -%}
  {{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + text + '<|eot_id|>' }}
{%- endmacro -%}
{{ bos_token }}
{%- if tools -%}
  {%- set ns = namespace(text='') -%}
  {%- if messages and messages[0].role == 'system' -%}
    {%- set ns.text = text_of(messages[0].content) + '\n\n' -%}
  {%- endif -%}
  {%- set ns.text = ns.text + 'You can call functions. This is what there is, a JSON object each:\n\n' -%}
  {%- for tool in tools -%}
    {%- set ns.text = ns.text + (tool | tojson) + '\n\n' -%}
  {%- endfor -%}
  {{ turn('system', ns.text + 'To call one, answer with its name and the object of its arguments alone: ' +
          '{"name": "...", "parameters": {...}}') }}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'tool' -%}
    {{ turn('ipython', text_of(message.content)) }}
  {%- elif message.tool_calls -%}
    {%- set ns = namespace(text=text_of(message.content)) -%}
    {%- for call in message.tool_calls -%}
      {%- set ns.text = ns.text + ('' if loop.first else '; ') + '{"name": "' + call.function.name +
                        '", "parameters": ' + (call.function.arguments | tojson) + '}' -%}
    {%- endfor -%}
    {{ turn('assistant', ns.text) }}
  {%- elif not (tools and loop.first and message.role == 'system') -%}
    {{ turn(message.role, text_of(message.content)) }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif -%}
)jinja";

constexpr std::array<BuiltinTemplate, 3> kTemplates = {
    {{"chatml", kChatml}, {"gemma", kGemma}, {"llama3", kLlama3}}};

}  // namespace

std::span<const BuiltinTemplate> builtin_templates() { return kTemplates; }

}  // namespace tally::text
