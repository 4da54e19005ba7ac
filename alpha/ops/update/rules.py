"""The equations of alpha's optimizers that compute element by element: see alpha.ops.update.rule for the syntax.

From these lines come the compiled kernels of the CPU, the CUDA kernels, NumPy's version and the numbers of a recorded
step. In all of them w is a parameter, g its gradient, t the number of the step, from 1, and d the gradient with weight
decay. Names are those of the papers that the optimizers in alpha/optim name.

The rules of PyTorch's first optimizers are contracted: a compiler may round a product and its sum once. The others
round each operation, and have the same bits on every device.
"""

from __future__ import annotations

from alpha.ops.update.rule import Rule

SGD = Rule("sgd", """
    now = 1 if nesterov else 0
    ahead = momentum if nesterov else 1
    d = g + weight_decay * w
    v = d if first else momentum * v + (1 - dampening) * d
    w = w - lr * (now * d + ahead * v if v else d)
""", optional={"v": "momentum"}, wide=False, contracted=True)

ADAM = Rule("adam", """
    coupled = 0 if decoupled else weight_decay
    shrink = 1 - lr * weight_decay if decoupled else 1
    d = g + coupled * w
    m = beta1 * m + (1 - beta1) * d
    v = beta2 * v + (1 - beta2) * d * d
    vmax = maximum(vmax, v)
    w = shrink * w - lr / (1 - beta1 ** t) * m / (sqrt(vmax if vmax else v) * (1 / sqrt(1 - beta2 ** t)) + eps)
""", optional={"vmax": "amsgrad"}, contracted=True)

RMSPROP = Rule("rmsprop", """
    d = g + weight_decay * w
    v = alpha * v + (1 - alpha) * d * d
    a = alpha * a + (1 - alpha) * d
    q = d / (sqrt(maximum(v - a * a, 0) if a else v) + eps)
    b = momentum * b + q
    w = w - lr * (b if b else q)
""", optional={"a": "centered", "b": "momentum"}, contracted=True)

ADAMAX = Rule("adamax", """
    d = g + weight_decay * w
    m = beta1 * m + (1 - beta1) * d
    u = maximum(beta2 * u, abs(d) + eps)
    w = w - lr / (1 - beta1 ** t) * m / u
""", contracted=True)

RADAM = Rule("radam", """
    coupled = 0 if decoupled else weight_decay
    shrink = 1 - lr * weight_decay if decoupled else 1
    p = 2 / (1 - beta2) - 1
    p_t = p - 2 * t * beta2 ** t / (1 - beta2 ** t)
    rectified = p_t > 5
    r = sqrt((p_t - 4) * (p_t - 2) * p / ((p - 4) * (p - 2) * p_t) * (1 - beta2 ** t)) if rectified else 1
    d = g + coupled * w
    m = beta1 * m + (1 - beta1) * d
    v = beta2 * v + (1 - beta2) * d * d
    w = shrink * w - lr / (1 - beta1 ** t) * r * (m / (sqrt(v) + eps) if rectified else m)
""", contracted=True)

ADAMOD = Rule("adamod", """
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    q = lr / (sqrt(v / (1 - beta2 ** t)) + eps)
    s = beta3 * s + (1 - beta3) * q
    w = (1 - lr * weight_decay) * w - minimum(q, s) * m * (1 / (1 - beta1 ** t))
""", contracted=True)

EMA = Rule("ema", """
    average = decay * average + (1 - decay) * w
""", over="average w", wide=False, contracted=True)

LION = Rule("lion", """
    c = beta1 * m + (1 - beta1) * g
    w = (1 - lr * weight_decay) * w - lr * (1 if c > 0 else -1 if c < 0 else 0)
    m = beta2 * m + (1 - beta2) * g
""")

NADAM = Rule("nadam", """
    d = g + weight_decay * w
    m = beta1 * m + (1 - beta1) * d
    v = beta2 * v + (1 - beta2) * (d * d)
    w = w - (d * (lr * (1 - u_t) / (1 - U_t)) + m * (lr * u_next / (1 - U_next))) / (
        sqrt(v * (1 / (1 - beta2 ** t))) + eps)
""")

ADAGRAD = Rule("adagrad", """
    d = g + weight_decay * w
    s = s + d * d
    w = w - d * (lr / (1 + (t - 1) * lr_decay)) / (sqrt(s) + eps)
""")

ADADELTA = Rule("adadelta", """
    d = g + weight_decay * w
    v = rho * v + (1 - rho) * (d * d)
    q = sqrt(u + eps) / sqrt(v + eps) * d
    u = rho * u + (1 - rho) * (q * q)
    w = w - lr * q
""")

ADAN = Rule("adan", """
    change = (0 if t == 1 else 1) * (g - before)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * change
    ahead = g + beta2 * change
    n = beta3 * n + (1 - beta3) * (ahead * ahead)
    q = (1 / (1 - beta1 ** t) * m + beta2 / (1 - beta2 ** t) * v) / (sqrt(n) * (1 / sqrt(1 - beta3 ** t)) + eps)
    w = (w - lr * q) * (1 / (1 + lr * weight_decay))
    before = g
""")

RULES = [value for value in vars().values() if isinstance(value, Rule)]
